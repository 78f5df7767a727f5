//! The door's questions, answered by the read models, by time travel, and by the state at hand.
//!
//! Lists and events of now come from SQLite; `status` and `explain` of now, and everything of the past, from a folded
//! state. All of them render the same rows, so it does not show which way an answer came.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;
use serde_json::Value;
use tidemill_bus::view::StateView;
use tidemill_domain::state::{Entity, State};
use tidemill_domain::unit::Name;
use tidemill_door::reads::{EventPage, EventQuery, ListKind, ListQuery, Point, Reads, ReadsError, ShowQuery};
use tidemill_projections::engine::Condition;
use tidemill_projections::explain::explain;
use tidemill_projections::filter::{EventFilter, Filter, FilterError, List, supplies};
use tidemill_projections::history::EventRow;
use tidemill_projections::query::{QueryError, ReadModels};
use tidemill_projections::resolve::{Match, Resolution, resolve};
use tidemill_projections::rows::{PoolRow, ServiceRow};
use tidemill_projections::status::{Status, status};
use tidemill_projections::travel::{At, Lists, TimeTravel, TravelError};

/// Answers from one process's read models, view and ledger.
pub struct Answers {
    models: ReadModels,
    travel: TimeTravel,
    view: Arc<StateView>,
}

impl Answers {
    /// Over these.
    pub fn new(models: ReadModels, travel: TimeTravel, view: Arc<StateView>) -> Self {
        Self { models, travel, view }
    }

    /// The state at a point, as read by `look`.
    async fn at<T>(&self, point: Point, look: impl FnOnce(&State) -> T) -> Result<T, ReadsError> {
        match travel_point(point) {
            None => Ok(self.view.read(look)),
            Some(at) => {
                let moment = self.travel.moment(at).await.map_err(travelled)?;
                Ok(look(&moment.state))
            }
        }
    }
}

fn travel_point(point: Point) -> Option<At> {
    match point {
        Point::Latest => None,
        Point::At(time) => Some(At::Time(time)),
        Point::Seq(sequence) => Some(At::Sequence(sequence)),
    }
}

fn travelled(error: TravelError) -> ReadsError {
    match &error {
        TravelError::AfterEnd { .. } | TravelError::BeforeBegin { .. } | TravelError::Empty => {
            ReadsError::NoSuchPoint {
                reason: error.to_string(),
            }
        }
        _ => unavailable(error.code(), &error, error.next()),
    }
}

fn unavailable(code: &str, reason: &dyn std::fmt::Display, next: &str) -> ReadsError {
    ReadsError::Unavailable {
        code: code.to_owned(),
        reason: reason.to_string(),
        next: next.to_owned(),
    }
}

fn queried(error: QueryError) -> ReadsError {
    match &error {
        QueryError::Filter(_) | QueryError::BadPage(_) => ReadsError::Invalid {
            reason: error.to_string(),
            next: error.next(),
        },
        _ => unavailable(error.code(), &error, error.next()),
    }
}

fn not_applicable(error: FilterError) -> ReadsError {
    ReadsError::Invalid {
        reason: error.to_string(),
        next: error.next(),
    }
}

fn value(row: &impl Serialize) -> Result<Value, ReadsError> {
    serde_json::to_value(row).map_err(|e| unavailable("row_unreadable", &e, "report this with the command you ran"))
}

/// Rows as the API shows them.
pub fn values<T: Serialize>(rows: impl IntoIterator<Item = T>) -> Result<Vec<Value>, serde_json::Error> {
    rows.into_iter().map(|row| serde_json::to_value(row)).collect()
}

fn shown<T: Serialize>(rows: impl IntoIterator<Item = T>) -> Result<Vec<Value>, ReadsError> {
    values(rows).map_err(|e| unavailable("row_unreadable", &e, "report this with the command you ran"))
}

/// A list of a folded state.
pub fn list_of(
    lists: &Lists<'_>,
    list: List,
    filter: &Filter,
) -> Result<Result<Vec<Value>, serde_json::Error>, FilterError> {
    Ok(match list {
        List::Nodes => values(lists.nodes(filter)?.rows),
        List::Devices => values(lists.devices(filter)?.rows),
        List::Services => values(lists.services(filter)?.rows),
        List::Instances => values(lists.instances(filter)?.rows),
        List::Queue => values(lists.queue(filter)?.rows),
        List::Switches => values(lists.switches(filter)?.rows),
    })
}

fn list(kind: ListKind) -> List {
    match kind {
        ListKind::Nodes => List::Nodes,
        ListKind::Devices => List::Devices,
        ListKind::Services => List::Services,
        ListKind::Instances => List::Instances,
        ListKind::Queue => List::Queue,
        ListKind::Switches => List::Switches,
    }
}

fn filter(query: ListQuery) -> Result<Filter, ReadsError> {
    Ok(Filter {
        supply: supplies(&query.supply).map_err(not_applicable)?,
        state: query.state,
        provider: query.provider,
        tenant: query.tenant,
        since: query.since,
        limit: query.limit,
        ..Filter::default()
    })
}

fn addressed(row: ServiceRow, gateway: Option<&str>) -> ServiceRow {
    match gateway {
        Some(gateway) => row.with_gateway(gateway),
        None => row,
    }
}

/// Most tenants that a refusal names.
const TENANTS_NAMED: usize = 10;

/// Refuses a tenant of which the state knows nothing.
pub fn known_tenant(state: &State, tenant: &Name) -> Result<(), ReadsError> {
    let services = state.services.values().map(|service| &service.tenant);
    let tokens = state.credentials.values().filter_map(|token| token.tenant.as_ref());
    let known: BTreeSet<&Name> = services.chain(tokens).collect();
    if known.contains(tenant) || *tenant == Name::default_tenant() {
        return Ok(());
    }
    Err(ReadsError::NoSuchTenant {
        tenant: tenant.clone(),
        known: known.into_iter().take(TENANTS_NAMED).cloned().collect(),
    })
}

/// What `id` means within a tenant's reach.
fn found(state: &State, id: &str, tenant: Option<&Name>) -> Result<Entity, ReadsError> {
    let nothing = || ReadsError::NotFound { id: id.to_owned() };
    let reachable = |m: &Match| tenant.is_none_or(|tenant| state.tenant_of(&m.entity) == Some(tenant));
    // A tenant's bare service name is its own, not the default tenant's.
    if let Some(tenant) = tenant
        && let Ok(name) = id.trim_start_matches("service/").parse()
        && let Some(service) = state.service_named(tenant, &name)
    {
        return Ok(Entity::Service(service.id));
    }
    match resolve(state, id) {
        Resolution::Found(m) if reachable(&m) => Ok(m.entity),
        Resolution::Found(_) | Resolution::NotFound => Err(nothing()),
        Resolution::Ambiguous(choices) => {
            let mut choices: Vec<Match> = choices.into_iter().filter(reachable).collect();
            match choices.len() {
                0 => Err(nothing()),
                1 => Ok(choices.remove(0).entity),
                _ => Err(ReadsError::Ambiguous {
                    id: id.to_owned(),
                    candidates: choices.into_iter().map(|m| m.id).collect(),
                }),
            }
        }
    }
}

fn status_value(status: Status, gateway: Option<&str>) -> Result<Value, ReadsError> {
    let status = match status {
        Status::Service {
            service,
            queue,
            instances,
        } => Status::Service {
            service: Box::new(addressed(*service, gateway)),
            queue,
            instances,
        },
        Status::Instance {
            instance,
            service,
            node,
        } => {
            let service = service.map(|service| Box::new(addressed(*service, gateway)));
            Status::Instance {
                instance,
                service,
                node,
            }
        }
        other => other,
    };
    let mut told = value(&status)?;
    if gateway.is_none()
        && let Some(service) = told.get_mut("service").and_then(Value::as_object_mut)
    {
        let known = "no gateway is connected to this server, so it does not know where services are reached";
        service.insert("url_reason".to_owned(), Value::from(known));
    }
    Ok(told)
}

fn event_page(rows: Vec<EventRow>, more: bool, anchor: u64) -> Result<EventPage, ReadsError> {
    // A full page may end inside a record; what lies behind its last row was not looked at.
    let through = if more {
        rows.last().map_or(anchor, |row| row.seq)
    } else {
        anchor
    };
    Ok(EventPage {
        rows: shown(rows)?,
        through,
    })
}

#[async_trait]
impl Reads for Answers {
    async fn list(&self, kind: ListKind, query: ListQuery) -> Result<Vec<Value>, ReadsError> {
        let (point, gateway) = (query.point, query.gateway_url.clone());
        let filter = filter(query)?;
        if let Some(at) = travel_point(point) {
            let moment = self.travel.moment(at).await.map_err(travelled)?;
            if let Some(tenant) = &filter.tenant {
                known_tenant(&moment.state, tenant)?;
            }
            if kind == ListKind::Services {
                let page = moment.lists().services(&filter).map_err(not_applicable)?;
                return shown(page.rows.into_iter().map(|row| addressed(row, gateway.as_deref())));
            }
            let rows = list_of(&moment.lists(), list(kind), &filter).map_err(not_applicable)?;
            return rows.map_err(|e| unavailable("row_unreadable", &e, "report this with the command you ran"));
        }
        self.tenant(filter.tenant.as_ref()).await?;
        let models = &self.models;
        match kind {
            ListKind::Nodes => shown(models.nodes(filter).await.map_err(queried)?.rows),
            ListKind::Devices => shown(models.devices(filter).await.map_err(queried)?.rows),
            ListKind::Instances => shown(models.instances(filter).await.map_err(queried)?.rows),
            ListKind::Queue => shown(models.queue(filter).await.map_err(queried)?.rows),
            ListKind::Switches => shown(models.switches(filter).await.map_err(queried)?.rows),
            ListKind::Services => {
                let rows = models.services(filter).await.map_err(queried)?.rows;
                shown(rows.into_iter().map(|row| addressed(row, gateway.as_deref())))
            }
        }
    }

    async fn pool(&self, point: Point) -> Result<Value, ReadsError> {
        let row: PoolRow = match travel_point(point) {
            Some(at) => self.travel.moment(at).await.map_err(travelled)?.lists().pool(),
            None => self.models.pool().await.map_err(queried)?.0,
        };
        value(&row)
    }

    async fn status(&self, query: ShowQuery) -> Result<Value, ReadsError> {
        let look = |state: &State| {
            let entity = found(state, &query.id, query.tenant.as_ref())?;
            status(state, &entity).ok_or_else(|| ReadsError::NotFound { id: query.id.clone() })
        };
        let status = self.at(query.point, look).await??;
        status_value(status, query.gateway_url.as_deref())
    }

    async fn explain(&self, query: ShowQuery) -> Result<Value, ReadsError> {
        let look = |state: &State| {
            let entity = found(state, &query.id, query.tenant.as_ref())?;
            explain(state, &entity).ok_or_else(|| ReadsError::NotFound { id: query.id.clone() })
        };
        let explained = self.at(query.point, look).await??;
        value(&explained)
    }

    async fn events(&self, query: EventQuery) -> Result<EventPage, ReadsError> {
        let about = match &query.about {
            None => None,
            Some(id) => Some(self.about(id, query.tenant.as_ref()).await?),
        };
        if query.point == Point::Latest {
            self.tenant(query.tenant.as_ref()).await?;
        }
        let filter = EventFilter {
            after: query.after,
            page: query.index.map(|index| format!("{}.{index}", query.after)),
            about,
            tenant: query.tenant,
            since: query.since,
            limit: Some(query.limit),
            ..EventFilter::default()
        };
        let page = match travel_point(query.point) {
            Some(at) => self.travel.events(filter, at).await.map_err(travelled)?,
            None => self.models.events(filter).await.map_err(queried)?,
        };
        event_page(page.rows, page.next.is_some(), page.anchor.sequence)
    }

    fn applied(&self) -> u64 {
        self.models.progress().map_or(0, |progress| progress.borrow().sequence)
    }

    async fn wait_for(&self, sequence: u64, timeout: Duration) -> bool {
        let (models, view) = tokio::join!(
            self.models.wait_for(sequence, timeout),
            self.view.wait_for(sequence, timeout)
        );
        models && view
    }

    fn problem(&self) -> Option<String> {
        let progress = self.models.progress()?;
        match &progress.borrow().condition {
            Condition::Following => None,
            Condition::Rebuilding { reason } => Some(format!("the read models are being rebuilt: {reason}")),
            Condition::Stalled { code, reason, .. } => Some(format!("{reason} [{code}]")),
        }
    }
}

impl Answers {
    /// Refuses a tenant of which nothing is known, not even of what is over.
    async fn tenant(&self, tenant: Option<&Name>) -> Result<(), ReadsError> {
        let Some(tenant) = tenant else { return Ok(()) };
        let unknown = match self.view.read(|state| known_tenant(state, tenant)) {
            Ok(()) => return Ok(()),
            Err(unknown) => unknown,
        };
        let over = Filter {
            tenant: Some(tenant.clone()),
            forgotten: true,
            limit: Some(1),
            ..Filter::default()
        };
        match self.models.services(over).await.map_err(queried)?.rows.is_empty() {
            true => Err(unknown),
            false => Ok(()),
        }
    }

    /// What `id` means, among what is over too: its events stay on the ledger.
    async fn about(&self, id: &str, tenant: Option<&Name>) -> Result<Entity, ReadsError> {
        match self.view.read(|state| found(state, id, tenant)) {
            Err(ReadsError::NotFound { .. }) => {}
            other => return other,
        }
        match self.models.resolve(id).await.map_err(queried)? {
            // Rows of another tenant are left out by the filter on the events themselves.
            Resolution::Found(m) => Ok(m.entity),
            Resolution::NotFound => Err(ReadsError::NotFound { id: id.to_owned() }),
            Resolution::Ambiguous(choices) => Err(ReadsError::Ambiguous {
                id: id.to_owned(),
                candidates: choices.into_iter().map(|m| m.id).collect(),
            }),
        }
    }
}
