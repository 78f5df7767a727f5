//! What the switch family's events do.

use crate::events::Event;
use crate::events::switch::{SwitchClosed, SwitchOpened};
use crate::id::SwitchId;

use super::switch::{CLOSED_KEPT, Closed, Switch};
use super::{ApplyError, Entity, EventMeta, State, Touched, missing};

impl State {
    pub(super) fn apply_switch(
        &mut self,
        event: &Event,
        meta: &EventMeta,
        touched: &mut Touched,
    ) -> Result<(), ApplyError> {
        match event {
            Event::SwitchOpened(e) => self.open_switch(e, event, meta, touched)?,
            Event::SwitchReplacementChosen(e) => {
                let switch = self.changed_switch(e.switch, event, meta, touched)?;
                switch.replacement = Some(e.instance);
            }
            Event::SwitchClosed(e) => self.close_switch(e, event, meta, touched)?,
            _ => unreachable!("the caller sends only this family"),
        }
        Ok(())
    }

    fn open_switch(
        &mut self,
        e: &SwitchOpened,
        event: &Event,
        meta: &EventMeta,
        touched: &mut Touched,
    ) -> Result<(), ApplyError> {
        let service = self
            .services
            .get(&e.service)
            .ok_or_else(|| missing(meta, event, e.service))?;
        self.switches.insert(
            e.switch,
            Switch {
                id: e.switch,
                service: e.service,
                tenant: service.tenant.clone(),
                name: service.name.clone(),
                instance: e.instance,
                node: e.node,
                cause: e.cause,
                detail: e.detail.clone(),
                detect: e.detect,
                opened_at: meta.recorded_at,
                replacement: None,
                closed: None,
                changed: meta.address,
                trace: meta.trace,
            },
        );
        touched.push(Entity::Switch(e.switch));
        Ok(())
    }

    fn close_switch(
        &mut self,
        e: &SwitchClosed,
        event: &Event,
        meta: &EventMeta,
        touched: &mut Touched,
    ) -> Result<(), ApplyError> {
        let switch = self.changed_switch(e.switch, event, meta, touched)?;
        switch.replacement = e.replacement.or(switch.replacement);
        switch.closed = Some(Closed {
            at: meta.recorded_at,
            outcome: e.outcome,
            to_node: e.to_node,
            replace: e.replace,
            effect: e.effect,
        });
        self.switches.retain(|id, switch| {
            let keep = switch
                .closed
                .is_none_or(|closed| meta.recorded_at.since(closed.at) <= CLOSED_KEPT);
            if !keep {
                touched.push(Entity::Switch(*id));
            }
            keep
        });
        Ok(())
    }

    fn changed_switch(
        &mut self,
        id: SwitchId,
        event: &Event,
        meta: &EventMeta,
        touched: &mut Touched,
    ) -> Result<&mut Switch, ApplyError> {
        let switch = self.switches.get_mut(&id).ok_or_else(|| missing(meta, event, id))?;
        switch.changed = meta.address;
        touched.push(Entity::Switch(id));
        Ok(switch)
    }

    /// The open switch of an instance, if there is one.
    pub fn open_switch_of(&self, instance: crate::id::InstanceId) -> Option<&Switch> {
        self.switches
            .values()
            .find(|switch| switch.is_open() && switch.instance == instance)
    }
}
