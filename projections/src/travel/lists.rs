//! Lists over a state, narrowed and paged as those of the read models are.

use tidemill_bus::digest::Anchor;
use tidemill_domain::state::State;
use tidemill_domain::time::Timestamp;

use super::Moment;
use crate::filter::{Filter, FilterError, List, Page};
use crate::rows::{
    DeviceRow, InstanceRow, NodeRow, PoolRow, QueueRow, ServiceRow, SwitchRow, device_row, instance_row, node_row,
    pool_row, queue_row, service_row, switch_row,
};

/// A state and the record that it is of: for lists over a state that is already at hand.
#[derive(Debug, Clone, Copy)]
pub struct Lists<'a> {
    /// The state.
    pub state: &'a State,
    /// The record that it is the state after.
    pub anchor: Anchor,
}

impl Moment {
    /// The lists of this moment.
    pub fn lists(&self) -> Lists<'_> {
        Lists {
            state: &self.state,
            anchor: self.anchor,
        }
    }
}

impl Lists<'_> {
    /// `nodes`.
    pub fn nodes(&self, filter: &Filter) -> Result<Page<NodeRow>, FilterError> {
        filter.check(List::Nodes)?;
        let state = self.state;
        let rows = state.nodes.keys().filter_map(|id| node_row(state, *id));
        let rows = rows.filter(|row| {
            any(&filter.state, &row.state)
                && any(&filter.supply, &row.supply)
                && any(&filter.provider, &row.provider)
                && since(filter, row.joined_at)
        });
        Ok(self.page(rows.map(|row| (row.sort_key(), row.id.to_string(), row)), filter))
    }

    /// `devices`.
    pub fn devices(&self, filter: &Filter) -> Result<Page<DeviceRow>, FilterError> {
        filter.check(List::Devices)?;
        let state = self.state;
        let rows = state.devices.keys().filter_map(|id| device_row(state, *id));
        let rows = rows.filter(|row| {
            any(&filter.state, &row.state)
                && any(&filter.supply, &row.supply)
                && any(&filter.provider, &row.provider)
                && filter.node.is_none_or(|n| row.node == n)
        });
        Ok(self.page(rows.map(|row| (row.sort_key(), row.id.to_string(), row)), filter))
    }

    /// `services`, without addresses ([`ServiceRow::with_gateway`]).
    pub fn services(&self, filter: &Filter) -> Result<Page<ServiceRow>, FilterError> {
        filter.check(List::Services)?;
        let state = self.state;
        let rows = state.services.keys().filter_map(|id| service_row(state, *id));
        let rows = rows.filter(|row| {
            any(&filter.state, &row.state)
                && filter.tenant.as_ref().is_none_or(|t| row.tenant == *t)
                && since(filter, row.desired_since)
        });
        Ok(self.page(rows.map(|row| (row.sort_key(), row.id.to_string(), row)), filter))
    }

    /// `instances`.
    pub fn instances(&self, filter: &Filter) -> Result<Page<InstanceRow>, FilterError> {
        filter.check(List::Instances)?;
        let state = self.state;
        let rows = state.instances.keys().filter_map(|id| instance_row(state, *id));
        let rows = rows.filter(|row| {
            let node = row.node.and_then(|n| state.nodes.get(&n));
            any(&filter.state, &row.state)
                && filter.tenant.as_ref().is_none_or(|t| row.tenant == *t)
                && filter.service.is_none_or(|s| row.service == s)
                && filter.node.is_none_or(|n| row.node == Some(n))
                && (filter.supply.is_empty() || node.is_some_and(|n| filter.supply.contains(&n.supply)))
                && (filter.provider.is_empty() || node.is_some_and(|n| filter.provider.contains(&n.provider)))
                && since(filter, row.since)
        });
        Ok(self.page(rows.map(|row| (row.sort_key(), row.id.to_string(), row)), filter))
    }

    /// `queue`.
    pub fn queue(&self, filter: &Filter) -> Result<Page<QueueRow>, FilterError> {
        filter.check(List::Queue)?;
        let state = self.state;
        let rows = state.services.keys().filter_map(|id| queue_row(state, *id));
        let rows =
            rows.filter(|row| filter.tenant.as_ref().is_none_or(|t| row.tenant == *t) && since(filter, row.since));
        Ok(self.page(rows.map(|row| (row.sort_key(), row.service.to_string(), row)), filter))
    }

    /// `switches` that were open or had been closed for at most an hour.
    pub fn switches(&self, filter: &Filter) -> Result<Page<SwitchRow>, FilterError> {
        filter.check(List::Switches)?;
        let state = self.state;
        let rows = state.switches.keys().filter_map(|id| switch_row(state, *id));
        let rows = rows.filter(|row| {
            any(&filter.state, &row.state)
                && filter.tenant.as_ref().is_none_or(|t| row.tenant == *t)
                && filter.service.is_none_or(|s| row.service == s)
                && filter.node.is_none_or(|n| row.from_node == n)
                && since(filter, row.opened_at)
        });
        Ok(self.page(rows.map(|row| (row.sort_key(), row.id.to_string(), row)), filter))
    }

    /// `pool`.
    pub fn pool(&self) -> PoolRow {
        pool_row(self.state)
    }

    fn page<T>(&self, rows: impl Iterator<Item = (String, String, T)>, filter: &Filter) -> Page<T> {
        let mark = filter.after.as_ref().and_then(|after| after.rsplit_once(' '));
        let behind = |sort: &str, id: &str| mark.is_none_or(|mark| (sort, id) > mark);
        let mut rows: Vec<_> = rows.filter(|(sort, id, _)| behind(sort, id)).collect();
        rows.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
        let more = rows.len() > filter.limit();
        rows.truncate(filter.limit());
        let last = rows.last().map(|(sort, id, _)| format!("{sort} {id}"));
        Page {
            next: last.filter(|_| more),
            rows: rows.into_iter().map(|(_, _, row)| row).collect(),
            anchor: self.anchor,
        }
    }
}

fn any<T: PartialEq>(wanted: &[T], value: &T) -> bool {
    wanted.is_empty() || wanted.contains(value)
}

fn since(filter: &Filter, time: Timestamp) -> bool {
    filter.since.is_none_or(|since| time >= since)
}
