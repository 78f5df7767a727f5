//! Query parameters: typed, and refused by name when they are unknown or impossible.

use std::str::FromStr;

use axum::extract::Query;
use http::Uri;
use tidemill_domain::time::Timestamp;
use tidemill_domain::unit::Name;

use super::Handled;
use crate::auth::Principal;
use crate::problem::Refusal;
use crate::reads::{Point, ReadsError};
use crate::shared::Shared;

/// The parameters of a request.
pub(super) struct Params(Vec<(String, String)>);

impl Params {
    /// Reads them; only those that the route knows are taken.
    pub(super) fn of(uri: &Uri, known: &[&str]) -> Handled<Self> {
        let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|error| Refusal::bad_parameter(error.body_text(), "see /openapi.json"))?;
        if let Some((name, _)) = pairs.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            let name: String = name.chars().take(60).collect();
            return Err(Refusal::bad_parameter(
                format!("unknown parameter `{name}`; known here are {}", known.join(", ")),
                "see /openapi.json",
            ));
        }
        Ok(Self(pairs))
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .rev()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// A flag: there without a value, or with a yes or no.
    pub(super) fn flag(&self, name: &str) -> Handled<bool> {
        match self.text(name) {
            None | Some("false" | "0" | "no") => Ok(false),
            Some("" | "true" | "1" | "yes") => Ok(true),
            Some(_) => Err(bad(name, "it is true or false")),
        }
    }

    /// All values, repeated or separated by commas.
    pub(super) fn list(&self, name: &str) -> Vec<String> {
        let values = self.0.iter().filter(|(key, _)| key == name);
        let parts = values.flat_map(|(_, value)| value.split(','));
        parts
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(str::to_owned)
            .collect()
    }

    pub(super) fn number<T: FromStr>(&self, name: &str) -> Handled<Option<T>> {
        self.text(name)
            .map(|text| text.parse().map_err(|_| bad(name, "it is a whole number")))
            .transpose()
    }

    pub(super) fn time(&self, name: &str) -> Handled<Option<Timestamp>> {
        self.text(name).map(|text| time(name, text)).transpose()
    }

    /// The tenant that the answer is narrowed to: the caller's own, or the one asked for.
    pub(super) fn tenant(&self, principal: &Principal) -> Handled<Option<Name>> {
        let asked = self
            .text("tenant")
            .map(|text| Name::from_str(text).map_err(|error| Refusal::bad_parameter(error.to_string(), "")))
            .transpose()?;
        match (principal.tenant(), asked) {
            (None, asked) => Ok(asked),
            (Some(own), None) => Ok(Some(own.clone())),
            (Some(own), Some(asked)) if *own == asked => Ok(Some(asked)),
            (Some(_), Some(asked)) => Err(Refusal::not_found("tenant", asked.as_str())),
        }
    }

    /// As of when. The future is refused: an answer as of now would pass for one as of then.
    pub(super) fn point(&self, shared: &Shared) -> Handled<Point> {
        let at = self.time("at")?;
        if let Some(at) = at {
            let head = shared.deps.view.read(|state| state.recorded_at);
            let now = shared.clock.now().max(head);
            if at > now {
                return Err(ReadsError::NoSuchPoint {
                    reason: format!("{at} is not there yet: it is {now}, and the ledger's last record is of {head}"),
                }
                .into());
            }
        }
        match (at, self.number("seq")?) {
            (Some(_), Some(_)) => Err(bad("seq", "give at or seq, not both")),
            (Some(at), None) => Ok(Point::At(at)),
            (None, Some(seq)) => Ok(Point::Seq(seq)),
            (None, None) => Ok(Point::Latest),
        }
    }

    /// Waits until the read models have seen `min_seq`.
    pub(super) async fn caught_up(&self, shared: &Shared) -> Handled<()> {
        let Some(sequence) = self.number::<u64>("min_seq")? else {
            return Ok(());
        };
        let reads = &shared.deps.reads;
        if reads.wait_for(sequence, shared.config.limits.min_seq_wait).await {
            return Ok(());
        }
        let reason = match reads.problem() {
            Some(problem) => format!(": {problem}"),
            None => String::new(),
        };
        Err(Refusal::new(
            503,
            "behind",
            format!(
                "this server has seen the ledger up to {} and not yet {sequence}{reason}",
                reads.applied()
            ),
            "ask again in a moment, or another server",
        ))
    }
}

/// Reads RFC 3339.
pub(super) fn time(name: &str, text: &str) -> Handled<Timestamp> {
    let quoted = serde_json::Value::String(text.to_owned());
    serde_json::from_value(quoted).map_err(|_| bad(name, "it is a time such as 2026-05-01T12:00:00Z"))
}

fn bad(name: &str, rule: &str) -> Refusal {
    Refusal::bad_parameter(format!("parameter `{name}`: {rule}"), "see /openapi.json")
}
