//! `/openapi.json`, made from the table of routes.

use axum::Json;
use serde_json::{Map, Value, json};

use crate::auth::Access;
use crate::routes::{ROUTES, Route, Verb};

/// The API's description, OpenAPI 3.1.
pub fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[verb(route)] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tidemill",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Lists are arrays of rows. Commands answer with `sequence`, the record at which they are \
                durable; `min_seq` on a later read waits for it. Errors are application/problem+json with a stable `code`.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Problem": {
                "type": "object",
                "required": ["code"],
                "properties": {
                    "type": {"type": "string"}, "title": {"type": "string"}, "status": {"type": "integer"},
                    "code": {"type": "string"}, "detail": {"type": "string"}, "next": {"type": "string"},
                    "trace_id": {"type": "string"},
                },
            }},
        },
    })
}

fn operation(route: &Route) -> Value {
    let in_path = route
        .path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
        .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}));
    let in_query = route.query.iter().map(
        |param| json!({"name": param.name, "in": "query", "description": param.what, "schema": {"type": "string"}}),
    );
    let mut parameters: Vec<Value> = in_path.chain(in_query).collect();
    if route.verb == Verb::Post {
        parameters.push(json!({
            "name": "Idempotency-Key", "in": "header", "schema": {"type": "string"},
            "description": "the same key is the same command: a retry gets the first answer",
        }));
    }
    let security = match route.access {
        Access::Public => json!([]),
        _ => json!([{"token": []}]),
    };
    json!({
        "summary": route.summary,
        "operationId": operation_id(route),
        "x-access": route.access.name(),
        "security": security,
        "parameters": parameters,
        "responses": {
            "200": {"description": "ok", "content": {(route.answer): {}}},
            "default": {"description": "refused", "content": {
                "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}},
            }},
        },
    })
}

fn verb(route: &Route) -> &'static str {
    match route.verb {
        Verb::Get => "get",
        Verb::Post => "post",
    }
}

/// `get_v1_status_id`.
fn operation_id(route: &Route) -> String {
    let mut id = verb(route).to_owned();
    for part in route
        .path
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|part| !part.is_empty())
    {
        id.push('_');
        id.push_str(part);
    }
    id
}

pub(crate) async fn handler() -> Json<Value> {
    Json(document())
}
