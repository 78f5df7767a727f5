//! What an earlier agent on this data directory left: instances that run on, and instances that ended meanwhile.
//!
//! A living shim holds a lock and answers on a socket, so whether one lives is a question to the kernel, not a guess
//! from a process number. Where none lives, the state file says how far the instance came; what a killed shim left
//! running is found by the environment it carries and ended before anything is reported.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use nix::fcntl::{Flock, FlockArg};

use crate::{
    InstanceId, clock,
    core::{Adopted, Found, Said},
    launch::Homes,
    outbox::Memory,
    shim::{
        tree,
        wire::{self, Event, Spec, State},
    },
    socket,
};

/// How long a shim that holds its lock may take until it answers.
const ANSWER_TRIES: u32 = 100;
const ANSWER_GAP: Duration = Duration::from_millis(50);

/// One instance found.
pub(crate) struct Finding {
    pub(crate) adopted: Adopted,
    /// What its shim reported, where it lives no more.
    pub(crate) events: Vec<Event>,
    pub(crate) end: End,
}

/// What else is known of it.
pub(crate) enum End {
    /// Its shim lives; here is a connection to it.
    Living(UnixStream),
    /// Its shim lives no more; `events` are all, or this is why not.
    Over(Option<String>),
    /// It is a container: whether that lives is for its keeper to find out.
    Container(Box<Spec>),
    /// Its end was said long ago.
    Said,
}

/// Looks through the homes. Blocks; nothing else may use them meanwhile.
pub(crate) fn look(homes: &Homes, memory: &Memory, boot_id: &str) -> io::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut homeless = memory.said.clone();
    for instance in homes.all()? {
        let said = homeless.remove(&instance);
        findings.extend(look_at(homes, &instance, said, boot_id)?);
    }
    for (instance, (said, waits)) in homeless {
        let end = match said {
            Said::Ended => End::Said,
            _ => {
                end_leftovers(&instance);
                End::Over(Some("its directory on the node vanished".to_owned()))
            }
        };
        findings.push(Finding {
            adopted: adopted(instance, None, Some((said, waits))),
            events: Vec::new(),
            end,
        });
    }
    Ok(findings)
}

fn look_at(
    homes: &Homes,
    instance: &InstanceId,
    said: Option<(Said, bool)>,
    boot_id: &str,
) -> io::Result<Option<Finding>> {
    let dir = homes.of(instance);
    let spec: Option<Spec> = wire::read(&dir.join(wire::SPEC)).unwrap_or_default();
    let finding = |events, end| {
        Some(Finding {
            adopted: adopted(instance.clone(), spec.as_ref(), said),
            events,
            end,
        })
    };
    if let Some((Said::Ended, _)) = said {
        return Ok(finding(Vec::new(), End::Said));
    }
    if let Some(spec) = spec.as_ref().filter(|spec| spec.container.is_some()) {
        return Ok(finding(Vec::new(), End::Container(Box::new(spec.clone()))));
    }
    if spec.as_ref().is_some_and(|spec| spec.boot_id == boot_id) {
        match find_shim(&dir)? {
            Shim::Lives(stream) => return Ok(finding(Vec::new(), End::Living(stream))),
            // Held until we are done: a shim still on its way here must not begin now.
            Shim::Gone(_lock) => {
                let state: Option<State> = wire::read(&dir.join(wire::STATE)).unwrap_or_default();
                let events = state.map(|state| state.events).unwrap_or_default();
                if is_over(&events) {
                    return Ok(finding(events, End::Over(None)));
                }
                end_leftovers(instance);
                if events.is_empty() && said.is_none() {
                    // The agent ended between making the directory and the shim's first act: nothing ever ran.
                    std::fs::remove_dir_all(&dir)?;
                    return Ok(None);
                }
                return Ok(finding(events, End::Over(Some("its shim was killed".to_owned()))));
            }
        }
    }
    let state: Option<State> = wire::read(&dir.join(wire::STATE)).unwrap_or_default();
    let events = state.map(|state| state.events).unwrap_or_default();
    let why = match is_over(&events) {
        true => None,
        false => Some("the machine was restarted".to_owned()),
    };
    Ok(finding(events, End::Over(why)))
}

fn is_over(events: &[Event]) -> bool {
    matches!(events.last(), Some(Event::Gone { .. } | Event::Failed { .. }))
}

enum Shim {
    Lives(UnixStream),
    Gone(Flock<File>),
}

fn find_shim(dir: &Path) -> io::Result<Shim> {
    for _ in 0..ANSWER_TRIES {
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(dir.join(wire::LOCK))?;
        if let Ok(lock) = Flock::lock(lock, FlockArg::LockExclusiveNonblock) {
            return Ok(Shim::Gone(lock));
        }
        if let Ok(stream) = socket::connect(dir, wire::SOCKET) {
            return Ok(Shim::Lives(stream));
        }
        std::thread::sleep(ANSWER_GAP);
    }
    Err(io::Error::new(
        io::ErrorKind::TimedOut,
        format!("the shim of {} holds its lock but does not answer", dir.display()),
    ))
}

/// Ends what a killed shim left running, however long that takes.
pub(crate) fn end_leftovers(instance: &InstanceId) {
    while let Err(left) = tree::kill_marked(instance.as_str()) {
        tracing::error!(
            code = "processes_do_not_end",
            %instance,
            left,
            "processes survive SIGKILL, so its devices are not free; a driver may hang"
        );
    }
}

fn adopted(instance: InstanceId, spec: Option<&Spec>, said: Option<(Said, bool)>) -> Adopted {
    let found = match said {
        Some((Said::Ended, true)) => Found::Ended,
        Some((Said::Ended, false)) => Found::Settled,
        _ => Found::Living,
    };
    let millis = |value: fn(&Spec) -> u64| Duration::from_millis(spec.map_or(0, value));
    Adopted {
        devices: spec.map(|spec| spec.devices.clone()).unwrap_or_default(),
        ready_http: spec.and_then(|spec| spec.ready_http.clone()),
        ready_timeout: millis(|spec| spec.ready_timeout_ms),
        grace: millis(|spec| spec.grace_ms),
        port: spec.map_or(0, |spec| spec.port),
        age: millis(|spec| clock::boottime_ms().saturating_sub(spec.created_ms)),
        said: said.map(|(said, _)| said),
        instance,
        found,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::shim::wire::{Exit, Identity};

    struct Home {
        _dir: tempfile::TempDir,
        homes: Homes,
        instance: InstanceId,
    }

    impl Home {
        /// A directory as an agent of boot `boot_id` made it.
        fn new(boot_id: &str) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let homes = Homes::new(dir.path());
            homes.create().unwrap();
            let instance = InstanceId::parse("inst-adopted").unwrap();
            std::fs::create_dir(homes.of(&instance)).unwrap();
            let spec = Spec {
                instance: instance.to_string(),
                workload: "t/w".into(),
                command: vec!["x".into()],
                env: Default::default(),
                grace_ms: 1_000,
                nofile: None,
                port: 4242,
                boot_id: boot_id.into(),
                created_ms: 0,
                devices: vec![],
                ready_http: None,
                ready_timeout_ms: 1_000,
                container: None,
            };
            wire::replace(&homes.of(&instance).join(wire::SPEC), &spec).unwrap();
            Self {
                _dir: dir,
                homes,
                instance,
            }
        }

        fn state(&self, events: Vec<Event>) {
            let state = State {
                boot_id: "any".into(),
                shim: Identity { pid: 1, start: 1 },
                main: None,
                events,
            };
            wire::replace(&self.homes.of(&self.instance).join(wire::STATE), &state).unwrap();
        }

        fn look(&self, said: Option<(Said, bool)>) -> Vec<Finding> {
            let mut memory = Memory::default();
            memory.said.extend(said.map(|said| (self.instance.clone(), said)));
            look(&self.homes, &memory, "this boot").unwrap()
        }
    }

    fn started() -> Event {
        Event::Started {
            pid: 7,
            start_ms: 1,
            fetch_ms: 0,
        }
    }

    fn gone() -> Event {
        Event::Gone {
            exit: Exit::default(),
            killed: false,
        }
    }

    fn why(finding: &Finding) -> Option<&str> {
        match &finding.end {
            End::Over(why) => why.as_deref(),
            End::Living(_) => Some("lives"),
            End::Container(_) => Some("a container"),
            End::Said => Some("said"),
        }
    }

    #[test]
    fn a_reboot_ends_what_ran() {
        let home = Home::new("last boot");
        home.state(vec![started()]);
        let found = home.look(Some((Said::Ready, false)));
        assert_eq!(why(&found[0]), Some("the machine was restarted"));
        home.state(vec![started(), gone()]);
        assert_eq!(
            why(&home.look(Some((Said::Ready, false)))[0]),
            None,
            "it had ended before"
        );
    }

    #[test]
    fn what_never_began_is_forgotten_and_may_begin_later() {
        let home = Home::new("this boot");
        assert!(home.look(None).is_empty());
        assert!(!home.homes.of(&home.instance).exists());
    }

    #[test]
    fn a_dead_shim_is_no_living_one() {
        let home = Home::new("this boot");
        home.state(vec![started()]);
        assert_eq!(why(&home.look(None)[0]), Some("its shim was killed"));
        home.state(vec![started(), gone()]);
        let found = home.look(None);
        assert_eq!((why(&found[0]), found[0].events.len()), (None, 2));
    }

    #[test]
    fn an_end_is_said_once() {
        let home = Home::new("this boot");
        home.state(vec![started(), gone()]);
        let waits = &home.look(Some((Said::Ended, true)))[0];
        assert_eq!((why(waits), &waits.adopted.found), (Some("said"), &Found::Ended));
        let settled = &home.look(Some((Said::Ended, false)))[0];
        assert_eq!(settled.adopted.found, Found::Settled);
        std::fs::remove_dir_all(home.homes.of(&home.instance)).unwrap();
        let kept = &home.look(Some((Said::Ended, true)))[0];
        assert_eq!(kept.adopted.found, Found::Ended, "remembered without its directory");
    }
}
