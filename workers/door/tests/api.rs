//! The REST API against a real sequencer: commands, repeats, roles, streams, descriptions.
#![allow(clippy::unwrap_used)]

mod support;

use bytes::Bytes;
use serde_json::{Value, json};
use support::{Cell, key, service, soon};
use tidemill_bus::commands::SubmitError;
use tidemill_client::{Api, Call, ClientError};
use tidemill_domain::command::{Command, JoinNode};
use tidemill_domain::events::node::Supply;
use tidemill_domain::state::node::NodeState;
use tidemill_domain::state::service::Lifecycle;
use tidemill_domain::time::Span;
use tidemill_door::{Check, CheckState, Door, DoorConfig, DoorDeps, Health};

async fn apply(api: &Api, text: &str, query: &str, key: &str) -> Result<Value, ClientError> {
    let path = format!("/v1/apply{query}");
    let call = Call::post(&path, "application/yaml", Bytes::from(text.to_owned()), key);
    api.send(&call).await?.json()
}

fn code<T: std::fmt::Debug>(result: Result<T, ClientError>) -> (u16, String) {
    let error = result.unwrap_err();
    let problem = error.problem().unwrap_or_else(|| panic!("{error}"));
    (problem.status, problem.code.clone())
}

#[tokio::test]
async fn apply_says_what_it_did_and_a_retry_gets_the_first_answer() {
    let cell = Cell::start().await;
    let api = cell.api(None);
    let text = service("default", "hello");
    let key = key();
    let first = apply(&api, &text, "", &key).await.unwrap();
    assert_eq!(first["changes"][0]["action"], "created");
    assert_eq!(first["changes"][0]["sentence"], "1 replica on any device each");
    assert_eq!(first["repeated"], false);
    let again = apply(&api, &text, "", &key).await.unwrap();
    assert_eq!(
        (&again["sequence"], &again["changes"]),
        (&first["sequence"], &first["changes"])
    );
    assert_eq!(again["repeated"], true);
    let other = apply(&api, &service("default", "other"), "", &key).await;
    assert_eq!(code(other), (409, "command_conflict".to_owned()));
    let rows: Vec<Value> = api
        .get_json(&format!("/v1/services?min_seq={}", first["sequence"]))
        .await
        .unwrap();
    assert_eq!(rows.len(), 1);

    let unchanged = apply(&api, &text, "", &support::key()).await.unwrap();
    assert_eq!(unchanged["changes"][0]["action"], "unchanged");
    let changed = format!("{text}scale: {{min: 3, max: 9}}\n");
    let dry = apply(&api, &changed, "?dry_run=true", &support::key()).await.unwrap();
    assert_eq!(
        (&dry["dry_run"], &dry["changes"][0]["action"]),
        (&json!(true), &json!("changed"))
    );
    assert_eq!(dry["changes"][0]["sentence"], "replicas 3 to 9, were 1 to 20");
    assert_eq!(
        cell.view.read(|s| s.services.values().next().unwrap().desired),
        1,
        "a dry run changes nothing"
    );
    let done = apply(&api, &changed, "", &support::key()).await.unwrap();
    assert_eq!(done["changes"], dry["changes"], "a dry run says what the real one does");
}

#[tokio::test]
async fn a_tenants_file_need_not_say_whose_it_is() {
    let cell = Cell::start().await;
    let made: Value = cell
        .api(None)
        .post_json("/v1/tokens", &json!({"role": "tenant", "tenant": "acme"}), &key())
        .await
        .unwrap();
    cell.view
        .wait_for(made["sequence"].as_u64().unwrap(), support::SOON)
        .await;
    let acme = cell.api(made["token"].as_str());
    let text = "kind: service\nname: chat\nrun: {command: [true]}\n";
    let dry = apply(&acme, text, "?dry_run=true", &key()).await.unwrap();
    assert_eq!(dry["changes"][0]["tenant"], "acme");
    let done = apply(&acme, text, "", &key()).await.unwrap();
    assert_eq!(done["changes"][0]["tenant"], "acme");
    cell.view
        .wait_for(done["sequence"].as_u64().unwrap(), support::SOON)
        .await;
    for (api, path) in [
        (&acme, "/v1/services/~/chat/stop"),
        (&acme, "/v1/services/acme/chat/stop"),
    ] {
        let stopped: Value = api.post_json(path, &json!({}), &key()).await.unwrap();
        assert_eq!(stopped["changes"][0]["tenant"], "acme", "{path}");
    }
    let other = apply(&acme, &format!("{text}tenant: default\n"), "", &key()).await;
    assert_eq!(code(other), (403, "not_allowed".to_owned()));
    let own = apply(&cell.api(None), text, "", &key()).await.unwrap();
    assert_eq!(
        own["changes"][0]["tenant"], "default",
        "an operator's is the default tenant's"
    );
    cell.view
        .wait_for(own["sequence"].as_u64().unwrap(), support::SOON)
        .await;
    let stopped: Value = cell
        .api(None)
        .post_json("/v1/services/~/chat/stop", &json!({}), &key())
        .await
        .unwrap();
    assert_eq!(stopped["changes"][0]["tenant"], "default");
}

#[tokio::test]
async fn a_bad_document_changes_nothing_of_the_good_one() {
    let cell = Cell::start().await;
    let text = format!(
        "{}---\n{}replicas: 3\n",
        service("default", "good"),
        service("default", "bad")
    );
    let error = apply(&cell.api(None), &text, "", &key()).await.unwrap_err();
    let problem = error.problem().unwrap();
    assert_eq!((problem.status, problem.code.as_str()), (422, "invalid"));
    assert!(
        problem
            .detail
            .contains("`replicas` at line 10: unknown key: did you mean `scale`?"),
        "{problem}"
    );
    assert_eq!(problem.trace_id.len(), 32);
    assert!(cell.view.read(|s| s.services.is_empty()));
    let large = "#".repeat(1024 * 1024 + 2);
    assert_eq!(
        code(apply(&cell.api(None), &large, "", &key()).await),
        (413, "too_large".to_owned())
    );
    let job = apply(&cell.api(None), "kind: job\nname: x\n", "", &key()).await;
    assert_eq!(code(job), (501, "not_yet".to_owned()));
}

#[tokio::test]
async fn a_services_own_commands() {
    let cell = Cell::start().await;
    let api = cell.api(None);
    apply(&api, &service("default", "a"), "", &key()).await.unwrap();
    cell.until(|s| (!s.services.is_empty()).then_some(())).await;
    let post = async |verb: &str, body: Value, key: &str| -> Result<Value, ClientError> {
        api.post_json(&format!("/v1/services/default/a/{verb}"), &body, key)
            .await
    };
    let scale_key = key();
    let scaled = post("scale", json!({"replicas": 3, "for_ms": 60_000}), &scale_key)
        .await
        .unwrap();
    assert_eq!(scaled["changes"][0]["action"], "scaled");
    let again = post("scale", json!({"replicas": 3, "for_ms": 60_000}), &scale_key)
        .await
        .unwrap();
    assert_eq!(
        (&again["sequence"], &again["repeated"]),
        (&scaled["sequence"], &json!(true))
    );
    assert_eq!(
        code(post("scale", json!({"replicas": 30}), &key()).await),
        (422, "invalid".to_owned())
    );
    assert_eq!(
        code(post("scale", json!({}), &key()).await),
        (422, "invalid".to_owned())
    );
    assert_eq!(
        code(post("scale", json!({"count": 1}), &key()).await),
        (422, "invalid".to_owned())
    );
    let stopped = post("stop", json!({}), &key()).await.unwrap();
    assert_eq!(stopped["changes"][0]["action"], "stopping");
    let released = post("scale", json!({"auto": true}), &key()).await.unwrap();
    assert_eq!(released["changes"][0]["action"], "released");
    post("start", json!({}), &key()).await.unwrap();
    post("delete", json!({}), &key()).await.unwrap();
    cell.until(|s| {
        s.services
            .values()
            .all(|s| s.lifecycle == Lifecycle::Deleting)
            .then_some(())
    })
    .await;
    let missing = api
        .post_json::<_, Value>("/v1/services/default/b/stop", &json!({}), &key())
        .await;
    assert_eq!(code(missing), (404, "not_found".to_owned()));
}

#[tokio::test]
async fn a_lost_outcome_is_asked_again_under_the_same_id() {
    let cell = Cell::start().await;
    let lost = |reason: &str| SubmitError::Unknown { reason: reason.into() };
    let no_leader = SubmitError::NoLeader { reason: "x".into() };
    *cell.commands.faults.lock().await = vec![(no_leader, false), (lost("y"), true)];
    let answer = apply(&cell.api(None), &service("default", "a"), "", &key())
        .await
        .unwrap();
    assert_eq!(
        (&answer["repeated"], &answer["changes"][0]["action"]),
        (&json!(true), &json!("created"))
    );
    let asked = cell.commands.asked.lock().await;
    assert_eq!(asked.len(), 3);
    assert!(asked.iter().all(|e| e.id == asked[0].id && e.trace == asked[0].trace));
    drop(asked);
    *cell.commands.faults.lock().await = vec![(SubmitError::Overloaded { waiting: 9 }, false)];
    let refused = apply(&cell.api(None), &service("default", "b"), "", &key()).await;
    assert_eq!(code(refused), (503, "overloaded".to_owned()));
}

#[tokio::test]
async fn the_callers_trace_is_kept_and_handed_back() {
    let cell = Cell::start().await;
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let api = cell.api(None).with_traceparent(parent);
    let key = key();
    let call = Call::post("/v1/apply", "application/yaml", service("default", "a").into(), &key);
    let answer = api.send(&call).await.unwrap();
    let back = answer.headers["traceparent"].to_str().unwrap();
    assert!(back.starts_with("00-0af7651916cd43dd8448eb211c80319c-") && back != parent);
    assert_eq!(
        answer.headers["x-tidemill-sequence"],
        answer.json::<Value>().unwrap()["sequence"].to_string()
    );
    let events: Vec<Value> = api.get_json("/v1/events?min_seq=2").await.unwrap();
    let applied = events.iter().find(|e| e["kind"] == "ServiceApplied").unwrap();
    assert_eq!(applied["trace_id"], "0af7651916cd43dd8448eb211c80319c");
}

#[tokio::test]
async fn tokens_are_shown_once_and_end() {
    let cell = Cell::start().await;
    let api = cell.api(None);
    let key = key();
    let body = json!({"role": "tenant", "tenant": "acme"});
    let first: Value = api.post_json("/v1/tokens", &body, &key).await.unwrap();
    let again: Value = api.post_json("/v1/tokens", &body, &key).await.unwrap();
    let text = first["token"].as_str().unwrap();
    assert_eq!(first["token"], again["token"], "a lost answer can be asked for again");
    assert!(text.starts_with("tm_") && text.len() == 46);
    let id = first["id"].as_str().unwrap();
    cell.until(|s| (s.credentials.len() == 1).then_some(())).await;
    let listed: Value = api.get_json("/v1/tokens").await.unwrap();
    assert_eq!((&listed[0]["id"], &listed[0]["state"]), (&json!(id), &json!("active")));
    assert!(!listed.to_string().contains(text));
    let tenant = cell.api(Some(text));
    tenant.get_json::<Value>("/v1/services").await.unwrap();
    let revoked: Value = api
        .post_json(&format!("/v1/tokens/{}/revoke", &id[..8]), &json!({}), &support::key())
        .await
        .unwrap();
    cell.view
        .wait_for(revoked["sequence"].as_u64().unwrap(), support::SOON)
        .await;
    assert_eq!(
        code(tenant.get_json::<Value>("/v1/services").await),
        (401, "token_revoked".to_owned())
    );
    let bad = api
        .post_json::<_, Value>("/v1/tokens", &json!({"role": "tenant"}), &support::key())
        .await;
    assert_eq!(code(bad), (422, "invalid".to_owned()));
    let bad = api
        .post_json::<_, Value>("/v1/tokens", &json!({"role": "god"}), &support::key())
        .await;
    assert_eq!(code(bad), (422, "invalid".to_owned()));
}

#[tokio::test]
async fn roles_and_tenants() {
    let cell = Cell::start().await;
    let (_, operator) = cell.token(json!({"role": "operator"})).await;
    let (_, acme) = cell.token(json!({"role": "tenant", "tenant": "acme"})).await;
    let (_, reader) = cell.token(json!({"role": "read-only"})).await;
    let (_, acme_reader) = cell.token(json!({"role": "read-only", "tenant": "acme"})).await;
    let (_, node) = cell.token(json!({"role": "node"})).await;
    let (_, gateway) = cell.token(json!({"role": "gateway"})).await;
    for tenant in ["acme", "rival"] {
        apply(&cell.api(Some(&operator)), &service(tenant, "chat"), "", &key())
            .await
            .unwrap();
    }
    cell.until(|s| (s.services.len() == 2).then_some(())).await;

    // (path, is it answered to: operator, tenant, reader, tenant's reader, node, gateway)
    let matrix = [
        ("/v1/services", [true, true, true, true, false, false]),
        ("/v1/instances", [true, true, true, true, false, false]),
        ("/v1/queue", [true, true, true, true, false, false]),
        ("/v1/events", [true, true, true, true, false, false]),
        ("/v1/nodes", [true, false, true, false, false, false]),
        ("/v1/devices", [true, false, true, false, false, false]),
        ("/v1/pool", [true, false, true, false, false, false]),
        ("/v1/doctor", [true, false, true, false, false, false]),
        ("/metrics", [true, false, true, false, false, false]),
        ("/v1/tokens", [true, false, false, false, false, false]),
    ];
    let tokens = [&operator, &acme, &reader, &acme_reader, &node, &gateway];
    for (path, allowed) in matrix {
        for (token, allowed) in tokens.iter().zip(allowed) {
            let api = cell.api(Some(token));
            let answer = api.send(&Call::get(path)).await;
            match allowed {
                true => drop(answer.unwrap()),
                false => assert_eq!(code(answer), (403, "not_allowed".to_owned()), "{path}"),
            }
        }
    }
    // Probes take no token.
    for path in ["/livez", "/readyz", "/openapi.json"] {
        cell.api(Some("tm_nonsense")).send(&Call::get(path)).await.unwrap();
    }

    let tenant = cell.api(Some(&acme));
    let rows: Vec<Value> = tenant.get_json("/v1/services").await.unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["tenant"], "acme");
    let rival = tenant.get_json::<Value>("/v1/services?tenant=rival").await;
    assert_eq!(code(rival), (404, "not_found".to_owned()));
    let events: Vec<Value> = tenant.get_json("/v1/events").await.unwrap();
    assert!(!events.is_empty() && !json!(events).to_string().contains("rival"));
    let stop = |tenant: &'static str| format!("/v1/services/{tenant}/chat/stop");
    let theirs = tenant.post_json::<_, Value>(&stop("rival"), &json!({}), &key()).await;
    assert_eq!(code(theirs), (404, "not_found".to_owned()));
    tenant
        .post_json::<_, Value>(&stop("acme"), &json!({}), &key())
        .await
        .unwrap();
    let theirs = apply(&tenant, &service("rival", "x"), "", &key()).await;
    assert_eq!(code(theirs), (403, "not_allowed".to_owned()));
    for token in [&reader, &acme_reader, &node, &gateway] {
        let write = cell
            .api(Some(token))
            .post_json::<_, Value>(&stop("acme"), &json!({}), &key())
            .await;
        assert_eq!(code(write), (403, "not_allowed".to_owned()));
    }
}

#[tokio::test]
async fn events_stream_live_and_resume_where_they_ended() {
    let cell = Cell::start().await;
    let api = cell.api(None);
    for name in ["a", "b"] {
        apply(&api, &service("default", name), "", &key()).await.unwrap();
    }
    cell.until(|s| (s.services.len() == 2).then_some(())).await;
    let all: Vec<Value> = api.get_json("/v1/events").await.unwrap();
    let mut stream = api.get_events("/v1/events?after=0", None).await.unwrap();
    let mut streamed = Vec::new();
    while streamed.len() < all.len() {
        let event = soon(stream.next_event()).await.unwrap().unwrap();
        streamed.push((event.id.unwrap(), serde_json::from_str::<Value>(&event.data).unwrap()));
    }
    assert_eq!(streamed.iter().map(|(_, row)| row.clone()).collect::<Vec<_>>(), all);
    // Live: what is written now arrives.
    apply(&api, &service("default", "c"), "", &key()).await.unwrap();
    let live = soon(stream.next_event()).await.unwrap().unwrap();
    assert!(live.data.contains("\"ServiceApplied\""), "{}", live.data);
    drop(stream);
    // Resumed after any event: exactly the next one.
    for window in streamed.windows(2) {
        let mut resumed = api.get_events("/v1/events", Some(&window[0].0)).await.unwrap();
        let next = soon(resumed.next_event()).await.unwrap().unwrap();
        assert_eq!(next.id.as_deref(), Some(window[1].0.as_str()));
    }
    assert_eq!(
        code(api.get_events("/v1/events", Some("x")).await),
        (422, "invalid".to_owned())
    );
}

#[tokio::test]
async fn a_reader_that_is_past_the_end_of_the_ledger_is_told_so() {
    let cell = Cell::start().await;
    let api = cell.api(None);
    let end = cell.deps.ledger.tail().await.unwrap().sequence;
    let refused = (409, "behind_the_end".to_owned());
    let beyond = format!("{}", end + 1000);
    assert_eq!(code(api.get_events("/v1/events", Some(&beyond)).await), refused);
    assert_eq!(
        code(api.get_events("/v1/events", Some(&format!("{beyond}.0"))).await),
        refused
    );
    let after = format!("/v1/events?after={beyond}");
    assert_eq!(code(api.get_events(&after, None).await), refused);
    assert_eq!(code(api.get_json::<Value>(&after).await), refused);
    // At the very end a reader waits for what comes.
    let mut stream = api.get_events(&format!("/v1/events?after={end}"), None).await.unwrap();
    apply(&api, &service("default", "a"), "", &key()).await.unwrap();
    assert!(soon(stream.next_event()).await.unwrap().is_some());
}

#[tokio::test]
async fn one_key_is_one_command_whatever_the_route() {
    let cell = Cell::start().await;
    let api = cell.api(None);
    for name in ["a", "b"] {
        let made = apply(&api, &service("default", name), "", &key()).await.unwrap();
        cell.view
            .wait_for(made["sequence"].as_u64().unwrap(), support::SOON)
            .await;
    }
    let key = key();
    let post = |path: &'static str, body: Value| {
        let (api, key) = (api.clone(), key.clone());
        async move { api.post_json::<_, Value>(path, &body, &key).await }
    };
    let stop = "/v1/services/default/a/stop";
    let first = post(stop, json!({})).await.unwrap();
    assert_eq!(
        post(stop, json!({})).await.unwrap()["sequence"],
        first["sequence"],
        "a retry"
    );
    for (path, body) in [
        ("/v1/services/default/b/stop", json!({})),
        ("/v1/services/default/a/start", json!({})),
        ("/v1/services/default/a/delete", json!({})),
        ("/v1/services/default/a/scale", json!({"replicas": 2})),
        ("/v1/tokens", json!({"role": "operator"})),
    ] {
        assert_eq!(
            code(post(path, body).await),
            (409, "command_conflict".to_owned()),
            "{path}"
        );
    }
    let other = apply(&api, &service("default", "c"), "", &key).await;
    assert_eq!(code(other), (409, "command_conflict".to_owned()));
    assert_eq!(cell.view.read(|s| (s.services.len(), s.credentials.len())), (2, 0));
}

#[tokio::test]
async fn every_problem_names_its_trace() {
    let cell = Cell::start().await;
    let api = cell.api(None);
    let given = "0af7651916cd43dd8448eb211c80319c";
    for (verb, path) in [
        ("GET", "/v1/nothing"),
        ("GET", "/nowhere"),
        ("GET", "/v1/apply"),
        ("DELETE", "/v1/nodes"),
        ("GET", "/v1/jobs"),
        ("GET", "/v1/status/nobody"),
    ] {
        let host = cell.url.trim_start_matches("http://");
        let mut stream = tokio::net::TcpStream::connect(host).await.unwrap();
        let text = format!(
            "{verb} {path} HTTP/1.1\r\nhost: {host}\r\ntraceparent: 00-{given}-b7ad6b7169203331-01\r\nconnection: close\r\n\r\n"
        );
        let mut answer = String::new();
        tokio::io::AsyncWriteExt::write_all(&mut stream, text.as_bytes())
            .await
            .unwrap();
        soon(tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut answer))
            .await
            .unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let problem: Value = serde_json::from_str(body).unwrap();
        assert_eq!(problem["trace_id"], given, "{verb} {path}");
        assert!(
            head.to_ascii_lowercase().contains(&format!("traceparent: 00-{given}-")),
            "{head}"
        );
        if verb != "GET" {
            continue;
        }
        // Without one of the caller's it has one of its own.
        let own = api.send(&Call::get(path)).await.unwrap_err();
        assert_eq!(own.problem().unwrap().trace_id.len(), 32, "{path}");
    }
}

#[tokio::test]
async fn a_token_ends_within_ten_years_or_never() {
    let cell = Cell::start().await;
    let api = cell.api(None);
    let make = |ttl_ms: u64| {
        let (api, body) = (api.clone(), json!({"role": "operator", "ttl_ms": ttl_ms}));
        async move { api.post_json::<_, Value>("/v1/tokens", &body, &key()).await }
    };
    for ttl in [0, 3653 * 24 * 3_600_000 + 1, u64::MAX / 1000, u64::MAX] {
        assert_eq!(code(make(ttl).await), (422, "invalid".to_owned()), "{ttl}");
    }
    let longest = make(3653 * 24 * 3_600_000).await.unwrap();
    assert!(longest["expires_at"].is_string(), "{longest}");
    let endless: Value = api
        .post_json("/v1/tokens", &json!({"role": "operator"}), &key())
        .await
        .unwrap();
    assert!(endless["expires_at"].is_null());
}

fn joining(name: &str) -> JoinNode {
    JoinNode {
        name: name.parse().unwrap(),
        supply: Supply::Idc,
        provider: "own".into(),
        region: "east".into(),
        zone: "a".into(),
        address: None,
        boot_id: "boot".into(),
        runtimes: vec![tidemill_domain::events::service::Runtime::Process],
        machine_id: "machine".into(),
        agent_id: "agent".into(),
        credential: None,
        devices: vec![],
        instances: vec![],
        inspection: None,
    }
}

/// A process that knows its ledger to be damaged.
struct Damaged;

impl Health for Damaged {
    fn role(&self) -> String {
        "read_only".to_owned()
    }

    fn ledger(&self) -> Option<Check> {
        let detail = "damaged from record 4 on";
        Some(Check::new(
            "ledger",
            CheckState::Fail,
            "ledger_record_changed",
            detail,
            "restore a backup",
        ))
    }

    fn checks(&self) -> Vec<Check> {
        vec![]
    }

    fn sequencer(&self) -> Option<tidemill_bus::sequencer::SequencerMetrics> {
        None
    }
}

#[tokio::test]
async fn a_ledger_known_to_be_damaged_fails_its_check_though_it_answers() {
    let cell = Cell::start().await;
    let deps = DoorDeps {
        health: std::sync::Arc::new(Damaged),
        ..cell.deps.clone()
    };
    let door = Door::bind(DoorConfig::new("door-b", "127.0.0.1:0".parse().unwrap()), deps)
        .await
        .unwrap();
    let api = Api::new(vec![format!("http://{}", door.local_addr()).parse().unwrap()], None);
    let stop = tokio_util::sync::CancellationToken::new();
    let serving = tokio::spawn(door.serve(stop.clone()));
    let checks: Vec<Value> = api.get_json("/v1/doctor").await.unwrap();
    let ledger = checks.iter().find(|check| check["check"] == "ledger").unwrap();
    assert_eq!(
        (&ledger["state"], &ledger["code"], &ledger["next"]),
        (
            &json!("fail"),
            &json!("ledger_record_changed"),
            &json!("restore a backup")
        )
    );
    assert_eq!(
        code(api.send(&Call::get("/readyz")).await),
        (503, "ledger_record_changed".to_owned())
    );
    api.get_json::<Value>("/v1/services").await.unwrap();
    stop.cancel();
    soon(serving).await.unwrap();
}

#[tokio::test]
async fn a_lost_node_is_forgotten_by_name_id_or_prefix() {
    let cell = Cell::start().await;
    let api = cell.api(None);
    let forget = |node: String, body: Value| {
        let api = api.clone();
        async move {
            let path = format!("/v1/nodes/{node}/forget");
            api.post_json::<_, Value>(&path, &body, &key()).await
        }
    };
    let scrapped = || json!({"reason": "scrapped"});
    assert_eq!(
        code(forget("rack-1".into(), scrapped()).await),
        (404, "not_found".to_owned())
    );
    cell.submit(Command::JoinNode(joining("rack-1"))).await;
    let node = cell.view.read(|s| *s.nodes.keys().next().unwrap());
    assert_eq!(
        code(forget("rack-1".into(), json!({})).await),
        (422, "invalid".to_owned())
    );
    assert_eq!(
        code(forget("rack-1".into(), scrapped()).await),
        (409, "wrong_state".to_owned())
    );
    let (silent, reason) = (Span::from_secs(10), || "silent".to_owned());
    cell.submit(Command::SuspectNode {
        node,
        silent,
        closed: false,
        reason: reason(),
    })
    .await;
    cell.submit(Command::LoseNode {
        node,
        silent,
        reason: reason(),
    })
    .await;
    let prefix = node.to_string()[..9].to_owned();
    let done = forget(prefix, scrapped()).await.unwrap();
    assert_eq!(
        (
            &done["changes"][0]["kind"],
            &done["changes"][0]["action"],
            &done["changes"][0]["name"]
        ),
        (&json!("node"), &json!("forgotten"), &json!("rack-1"))
    );
    cell.until(|s| (s.nodes[&node].state == NodeState::Left).then_some(()))
        .await;
    let again = forget("rack-1".into(), scrapped()).await.unwrap();
    assert_eq!(again["changes"][0]["action"], "unchanged");
}

#[tokio::test]
async fn what_is_asked_wrongly_is_refused_by_name() {
    let cell = Cell::start().await;
    let api = cell.api(None);
    let cases = [
        ("/v1/nodes?colour=red", 400, "bad_parameter"),
        ("/v1/nodes?at=yesterday", 400, "bad_parameter"),
        ("/v1/nodes?at=2026-05-01T12:00:00Z&seq=3", 400, "bad_parameter"),
        ("/v1/nodes?min_seq=x", 400, "bad_parameter"),
        ("/v1/services?tenant=Not%20A%20Name", 400, "bad_parameter"),
        ("/v1/nodes?at=2999-01-01T00:00:00Z", 404, "no_such_point"),
        ("/v1/pool?at=2999-01-01T00:00:00Z", 404, "no_such_point"),
        ("/v1/events?at=2999-01-01T00:00:00Z", 404, "no_such_point"),
        ("/v1/explain/hello?at=2999-01-01T00:00:00Z", 404, "no_such_point"),
        ("/v1/nothing", 404, "unknown_path"),
        ("/v1/jobs", 501, "not_yet"),
        ("/v1/apply", 405, "wrong_method"),
        ("/v1/status/nobody", 404, "not_found"),
        ("/v1/logs/inst-7k2", 404, "not_found"),
        ("/v1/connect/agent", 426, "websocket_expected"),
    ];
    for (path, status, expected) in cases {
        assert_eq!(
            code(api.send(&Call::get(path)).await),
            (status, expected.to_owned()),
            "{path}"
        );
    }
    let future = api.send(&Call::get("/v1/nodes?at=2999-01-01T00:00:00Z")).await;
    let head = cell.view.read(|s| s.recorded_at).to_string();
    let said = future.unwrap_err().to_string();
    assert!(said.contains(&head), "{head} in {said}");
    let drain = api
        .post_json::<_, Value>("/v1/nodes/node-x/drain", &json!({"reason": "x"}), &key())
        .await;
    assert_eq!(code(drain), (404, "not_found".to_owned()));
    let mute = api
        .post_json::<_, Value>("/v1/nodes/node-x/drain", &json!({}), &key())
        .await;
    assert_eq!(code(mute).0, 422, "it says why or is not taken");
}

#[tokio::test]
async fn min_seq_waits_and_then_says_how_far_it_is() {
    let cell = Cell::with(|config| config.limits.min_seq_wait = std::time::Duration::from_millis(50)).await;
    let behind = cell.api(None).get_json::<Value>("/v1/nodes?min_seq=1000000").await;
    assert_eq!(code(behind), (503, "behind".to_owned()));
}

#[tokio::test]
async fn every_described_route_is_answered_and_none_is_missing() {
    let cell = Cell::start().await;
    let api = cell.api(None);
    let document: Value = api.get_json("/openapi.json").await.unwrap();
    assert_eq!(document, tidemill_door::openapi());
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() > 30);
    let mut ids = std::collections::BTreeSet::new();
    for (path, operations) in paths {
        for (verb, operation) in operations.as_object().unwrap() {
            assert!(
                ids.insert(operation["operationId"].as_str().unwrap().to_owned()),
                "{path}"
            );
            let real = path.replace(['{', '}'], "x");
            let key = key();
            let call = match verb.as_str() {
                "get" => Call::get(&real),
                _ => Call::post(&real, "application/json", Bytes::from_static(b"{}"), &key),
            };
            if let Err(error) = api.send(&call).await {
                let code = error.code().to_owned();
                assert!(
                    !["unknown_path", "wrong_method", "internal", "protocol"].contains(&code.as_str()),
                    "{path}: {error}"
                );
            }
        }
    }
}

#[tokio::test]
async fn probes_and_figures() {
    let cell = Cell::start().await;
    let api = cell.api(None);
    apply(&api, &service("default", "a"), "", &key()).await.unwrap();
    let text = async |path: &str| String::from_utf8(api.send(&Call::get(path)).await.unwrap().body.to_vec()).unwrap();
    assert_eq!(text("/livez").await, "ok\n");
    assert_eq!(text("/readyz").await, "ok\n");
    let verbose: Value = api.get_json("/readyz?verbose").await.unwrap();
    assert_eq!((&verbose["ready"], &verbose["role"]), (&json!(true), &json!("leader")));
    let figures = text("/metrics").await;
    for line in [
        "tidemill_command_duration_seconds_count{command=\"ApplyServices\",outcome=\"ok\"} 1",
        "tidemill_nodes{state=\"ready\"} 0",
        "tidemill_leader 1",
        "tidemill_services 1",
        // The record that began the epoch counts among neither.
        "tidemill_sequencer_append_seconds_count 1",
        "tidemill_sequencer_append_seconds_bucket{le=\"+Inf\"} 1",
        "tidemill_sequencer_group_commits_bucket{le=\"1\"} 1",
        "tidemill_sequencer_group_commits_sum 1",
    ] {
        assert!(figures.contains(line), "{line} in\n{figures}");
    }
    let findings: Vec<Value> = api.get_json("/v1/doctor").await.unwrap();
    assert!(
        findings
            .iter()
            .any(|f| f["code"] == "worker_missing" && f["state"] == "fail")
    );
    assert!(
        findings
            .iter()
            .all(|f| f["state"] == "ok" || !f["next"].as_str().unwrap().is_empty()),
        "{findings:#?}"
    );
}

#[tokio::test]
async fn a_taken_port_is_said_with_what_to_do() {
    let cell = Cell::start().await;
    let address = cell.url.trim_start_matches("http://").parse().unwrap();
    let error = Door::bind(DoorConfig::new("door-b", address), cell.deps.clone())
        .await
        .unwrap_err();
    assert_eq!(error.code(), "address_in_use");
    assert!(error.next().contains("--listen"));
}

#[tokio::test]
async fn too_many_requests_are_refused_and_probes_are_not() {
    let cell = Cell::with(|config| {
        config.limits.requests = 1;
        config.limits.min_seq_wait = std::time::Duration::from_secs(5);
    })
    .await;
    let api = cell.api(None);
    let slow = tokio::spawn({
        let api = api.clone();
        async move { api.get_json::<Value>("/v1/nodes?min_seq=1000000").await }
    });
    let overloaded = async {
        loop {
            if let Err(error) = api.get_json::<Value>("/v1/nodes").await {
                return error;
            }
            tokio::task::yield_now().await;
        }
    };
    assert_eq!(soon(overloaded).await.code(), "overloaded");
    api.send(&Call::get("/livez")).await.unwrap();
    // What it waits for comes: the slot is free again.
    slow.abort();
    let free = async {
        while api.get_json::<Value>("/v1/nodes").await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    soon(free).await;
}
