//! The core as tables: what happened, what is to be done.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use tidemill_protocol::{
    Stamp,
    agent::{Desired, DesiredDevice, DesiredInstance, FactBody, RunSpec, Want},
};

use super::{Adopted, Core, CoreConfig, Found, Input, Output, Said};
use crate::{InstanceId, shim::wire::Exit};

fn id(name: &str) -> InstanceId {
    InstanceId::parse(name).unwrap()
}

fn stamp(sequence: u64) -> Stamp {
    Stamp {
        cell: "c".into(),
        ledger: "l".into(),
        epoch: 1,
        sequence,
    }
}

fn wish(name: &str) -> DesiredInstance {
    DesiredInstance {
        instance: name.into(),
        want: Want::Run,
        run: RunSpec {
            runtime: "process".into(),
            command: vec!["x".into()],
            ready_http: Some("/health".into()),
            ready_timeout_ms: 10_000,
            stop_grace_ms: 3_000,
            ..RunSpec::default()
        },
        workload: "t/w".into(),
        devices: vec![DesiredDevice {
            uuid: format!("GPU-{name}"),
            milli: 1000,
            kind: "cuda".into(),
        }],
        fence: None,
        traceparent: None,
    }
}

fn stop(mut wish: DesiredInstance) -> DesiredInstance {
    wish.want = Want::Stop { reason: "asked".into() };
    wish
}

fn desired(sequence: u64, instances: Vec<DesiredInstance>) -> Input {
    Input::Desired(Desired {
        stamp: stamp(sequence),
        instances,
    })
}

fn launched(name: &str) -> Input {
    Input::Launched {
        instance: id(name),
        pid: 7,
        port: 4242,
        fetch_ms: 0,
        start_ms: 3,
    }
}

fn gone(name: &str, code: i32, killed: bool) -> Input {
    Input::Gone {
        instance: id(name),
        exit: Exit {
            code: Some(code),
            signal: None,
            last_line: Some("oops".into()),
            out_of_memory: None,
        },
        killed,
    }
}

fn probed(name: &str, result: Result<(), String>) -> Input {
    Input::Probed {
        instance: id(name),
        result,
    }
}

const fn ms(value: u64) -> Duration {
    Duration::from_millis(value)
}

/// A core and what it said, with the noise of stamps left out.
struct Bench {
    core: Core,
    now: Duration,
}

impl Bench {
    fn new() -> Self {
        Self::with(CoreConfig {
            address: Some("10.0.0.1".into()),
            max_launching: 2,
            accept_ledger: None,
        })
    }

    fn with(config: CoreConfig) -> Self {
        Self {
            core: Core::new(config, None),
            now: ms(1_000),
        }
    }

    fn step(&mut self, input: Input) -> Vec<Output> {
        let mut outputs = self.core.step(input, self.now);
        outputs.retain(|output| !matches!(output, Output::Remember(_)));
        outputs
    }

    /// Goes to the next wake-up.
    fn wake(&mut self) -> Vec<Output> {
        self.now = self.core.next_wake().unwrap();
        self.step(Input::Tick)
    }

    fn running(&mut self, name: &str) {
        self.step(desired(1, vec![wish(name)]));
        self.step(launched(name));
    }

    fn ready(&mut self, name: &str) {
        self.running(name);
        self.wake();
        self.step(probed(name, Ok(())));
    }

    fn state(&self, name: &str) -> String {
        let statuses = self.core.statuses();
        let found = statuses.iter().find(|status| status.instance == name);
        found.map_or_else(|| "unknown".into(), |status| status.state.clone())
    }
}

fn facts(outputs: &[Output]) -> Vec<FactBody> {
    outputs
        .iter()
        .filter_map(|output| match output {
            Output::Fact { body, .. } => Some(body.clone()),
            _ => None,
        })
        .collect()
}

fn launches(outputs: &[Output]) -> Vec<String> {
    outputs
        .iter()
        .filter_map(|output| match output {
            Output::Launch(plan) => Some(plan.instance.clone()),
            _ => None,
        })
        .collect()
}

fn stops(outputs: &[Output]) -> usize {
    outputs
        .iter()
        .filter(|output| matches!(output, Output::Stop { .. }))
        .count()
}

#[test]
fn from_launch_to_ready() {
    let mut bench = Bench::new();
    assert_eq!(launches(&bench.step(desired(1, vec![wish("inst-a")]))), ["inst-a"]);
    assert_eq!(bench.step(desired(2, vec![wish("inst-a")])), [], "once is enough");
    let started = facts(&bench.step(launched("inst-a")));
    assert!(matches!(started[..], [FactBody::Started { pid: 7, port: 4242, .. }]));
    assert!(matches!(&bench.wake()[..], [Output::Probe { port: 4242, .. }]));
    bench.now += ms(5);
    assert_eq!(bench.step(probed("inst-a", Err("refused".into()))), []);
    assert!(matches!(&bench.wake()[..], [Output::Probe { .. }]));
    bench.now += ms(20);
    let ready = facts(&bench.step(probed("inst-a", Ok(()))));
    let expected = FactBody::Ready {
        endpoint: Some("10.0.0.1:4242".into()),
        load_ms: 100,
    };
    assert_eq!(ready, [expected]);
    assert_eq!(bench.state("inst-a"), "ready");
}

#[test]
fn checks_are_quick_first_and_then_a_tenth_of_the_time_it_took() {
    let mut bench = Bench::new();
    let mut slow = wish("inst-a");
    slow.run.ready_timeout_ms = 3_600_000;
    bench.step(desired(1, vec![slow]));
    bench.step(launched("inst-a"));
    let began = bench.now;
    let mut checks = 0;
    while bench.now < began + Duration::from_secs(60) {
        bench.wake();
        bench.step(probed("inst-a", Err("no".into())));
        checks += 1;
        let gap = bench.core.next_wake().unwrap() - bench.now;
        let tenth = ((bench.now - began) / 10).clamp(ms(50), ms(1000));
        assert_eq!(gap, tenth);
    }
    assert!((70..130).contains(&checks), "{checks}");
}

#[test]
fn without_a_check_running_a_second_is_ready() {
    let mut bench = Bench::new();
    let mut plain = wish("inst-a");
    plain.run.ready_http = None;
    plain.run.ready_timeout_ms = 10;
    bench.step(desired(1, vec![plain]));
    bench.step(launched("inst-a"));
    assert!(matches!(
        facts(&bench.wake())[..],
        [FactBody::Ready { load_ms: 1000, .. }]
    ));
    assert_eq!(bench.core.next_wake(), None, "nothing to check");
}

#[test]
fn how_an_instance_ends_decides_what_is_said() {
    type Prepare = fn(&mut Bench);
    let ended: [(&str, Prepare, Input, FactBody); 9] = [
        (
            "exits before ready",
            |bench| bench.running("inst-a"),
            gone("inst-a", 2, false),
            FactBody::StartFailed {
                code: "exited_before_ready".into(),
                reason: "exited with code 2: oops".into(),
            },
        ),
        (
            "exits when ready",
            |bench| bench.ready("inst-a"),
            gone("inst-a", 0, false),
            FactBody::Exited {
                code: Some(0),
                signal: None,
                reason: "exited with code 0: oops".into(),
            },
        ),
        (
            "exits and leaves something behind",
            |bench| {
                bench.ready("inst-a");
                let exit = Exit::default();
                let instance = id("inst-a");
                assert_eq!(bench.step(Input::Exited { instance, exit }), []);
                assert_eq!(bench.state("inst-a"), "stopping");
            },
            gone("inst-a", 1, true),
            FactBody::Exited {
                code: Some(1),
                signal: None,
                reason: "exited with code 1: oops".into(),
            },
        ),
        (
            "asked to stop",
            |bench| {
                bench.ready("inst-a");
                assert_eq!(stops(&bench.step(desired(2, vec![stop(wish("inst-a"))]))), 1);
                assert_eq!(stops(&bench.step(desired(3, vec![stop(wish("inst-a"))]))), 0);
            },
            gone("inst-a", 0, true),
            FactBody::Stopped { killed: true },
        ),
        (
            "asked to stop while launching",
            |bench| {
                bench.step(desired(1, vec![wish("inst-a")]));
                assert_eq!(stops(&bench.step(desired(2, vec![stop(wish("inst-a"))]))), 1);
                assert_eq!(stops(&bench.step(launched("inst-a"))), 1);
            },
            gone("inst-a", 0, false),
            FactBody::Stopped { killed: false },
        ),
        (
            "never ready",
            |bench| {
                bench.running("inst-a");
                bench.wake();
                bench.now += ms(10_000);
                assert_eq!(stops(&bench.step(Input::Tick)), 1);
            },
            gone("inst-a", 143, false),
            FactBody::StartFailed {
                code: "not_ready_in_time".into(),
                reason: "it was not ready within 10000 ms; its last words: oops".into(),
            },
        ),
        (
            "cannot be launched",
            |bench| {
                bench.step(desired(1, vec![wish("inst-a")]));
            },
            Input::LaunchFailed {
                instance: id("inst-a"),
                code: "command_not_found".into(),
                reason: "no".into(),
            },
            FactBody::StartFailed {
                code: "command_not_found".into(),
                reason: "no".into(),
            },
        ),
        (
            "its shim is killed",
            |bench| bench.ready("inst-a"),
            Input::Lost {
                instance: id("inst-a"),
                reason: "lost".into(),
            },
            FactBody::Exited {
                code: None,
                signal: None,
                reason: "lost".into(),
            },
        ),
        (
            "its shim is killed while stopping",
            |bench| {
                bench.ready("inst-a");
                bench.step(desired(2, vec![]));
            },
            Input::Lost {
                instance: id("inst-a"),
                reason: "lost".into(),
            },
            FactBody::Stopped { killed: true },
        ),
    ];
    for (name, prepare, input, expected) in ended {
        let mut bench = Bench::new();
        prepare(&mut bench);
        assert_eq!(facts(&bench.step(input)), [expected], "{name}");
        assert_eq!(bench.state("inst-a"), "gone", "{name}");
        assert_eq!(bench.core.next_wake(), None, "{name}");
        // Whatever comes late changes nothing, and a name lives once.
        assert_eq!(bench.step(gone("inst-a", 9, false)), [], "{name}");
        assert_eq!(bench.step(probed("inst-a", Ok(()))), [], "{name}");
        assert_eq!(bench.step(desired(8, vec![wish("inst-a")])), [], "{name}");
        bench.step(Input::Settled(vec![id("inst-a")]));
        assert_eq!(bench.step(desired(9, vec![wish("inst-a")])), [], "{name}");
        assert_eq!(
            bench.step(desired(10, vec![])),
            [Output::Forget(id("inst-a"))],
            "{name}"
        );
    }
}

#[test]
fn a_ready_instance_is_checked_on() {
    let mut bench = Bench::new();
    bench.ready("inst-a");
    let mut check = |result: Result<(), String>| {
        assert!(matches!(bench.wake()[..], [Output::Probe { .. }]));
        facts(&bench.step(probed("inst-a", result)))
    };
    let failed = || Err("answered 500".to_owned());
    assert_eq!(check(failed()), []);
    assert_eq!(check(failed()), []);
    assert_eq!(check(Ok(())), [], "three in a row count");
    assert_eq!(check(failed()), []);
    assert_eq!(check(failed()), []);
    assert!(matches!(check(failed())[..], [FactBody::Unready { .. }]));
    assert_eq!(check(failed()), [], "said once");
    assert!(matches!(check(Ok(()))[..], [FactBody::Ready { .. }]));
}

#[test]
fn what_was_ready_and_stays_unready_is_ended_and_says_why() {
    // (its `ready.timeout`, when it is ended)
    for (timeout, limit) in [(10_000, 10_000), (300_000, 60_000)] {
        let mut bench = Bench::new();
        let mut wish = wish("inst-a");
        wish.run.ready_timeout_ms = timeout;
        bench.step(desired(1, vec![wish]));
        bench.step(launched("inst-a"));
        bench.step(probed("inst-a", Ok(())));
        // Hung: each check is asked for and fails; the lapse begins with the third.
        let mut lapsed = None;
        let hung = |bench: &mut Bench, lapsed: &mut Option<Duration>| loop {
            bench.now = bench.core.next_wake().expect("it is watched");
            let out = bench.step(Input::Tick);
            if stops(&out) > 0 {
                return bench.now;
            }
            if out.iter().any(|o| matches!(o, Output::Probe { .. })) {
                bench.now += ms(500);
                let out = bench.step(probed("inst-a", Err("no answer".into())));
                if matches!(facts(&out)[..], [FactBody::Unready { .. }]) {
                    *lapsed = Some(bench.now);
                }
                if stops(&out) > 0 {
                    return bench.now;
                }
            }
        };
        let ended = hung(&mut bench, &mut lapsed);
        assert_eq!(ended - lapsed.expect("it was said to be unready"), ms(limit));
        let said = facts(&bench.step(gone("inst-a", 0, true)));
        assert!(
            matches!(&said[..], [FactBody::StartFailed { code, reason }] if code == "unready_too_long" && reason.contains("no answer")),
            "{said:?}"
        );
    }
}

#[test]
fn what_answers_again_in_time_goes_on() {
    let mut bench = Bench::new();
    bench.step(desired(1, vec![wish("inst-a")]));
    bench.step(launched("inst-a"));
    bench.step(probed("inst-a", Ok(())));
    for _ in 0..3 {
        for _ in 0..4 {
            bench.now = bench.core.next_wake().unwrap();
            bench.step(Input::Tick);
            assert_eq!(stops(&bench.step(probed("inst-a", Err("busy".into())))), 0);
        }
        bench.now += ms(5_000);
        bench.step(Input::Tick);
        assert!(matches!(
            facts(&bench.step(probed("inst-a", Ok(()))))[..],
            [FactBody::Ready { .. }]
        ));
    }
    assert_eq!(bench.state("inst-a"), "ready");
}

#[test]
fn launches_are_bounded_and_wait_for_their_devices() {
    let mut bench = Bench::new();
    let mut second = wish("inst-b");
    second.devices = wish("inst-a").devices;
    let all = vec![wish("inst-a"), second, wish("inst-c"), wish("inst-d")];
    let first = bench.step(desired(1, all.clone()));
    assert_eq!(
        launches(&first),
        ["inst-a", "inst-c"],
        "two at a time, b's device is taken"
    );
    assert_eq!(launches(&bench.step(launched("inst-a"))), ["inst-d"]);
    assert_eq!(launches(&bench.step(launched("inst-c"))), [""; 0]);
    assert_eq!(bench.state("inst-b"), "starting");
    let freed = bench.step(gone("inst-a", 1, false));
    assert_eq!(launches(&freed), ["inst-b"], "its device was given back");
}

#[test]
fn a_stop_of_what_is_not_here_is_answered() {
    let mut bench = Bench::new();
    let unknown = bench.step(desired(1, vec![stop(wish("inst-a"))]));
    assert_eq!(facts(&unknown), [FactBody::Stopped { killed: false }]);
    assert_eq!(bench.step(desired(2, vec![stop(wish("inst-a"))])), [], "once");
    let waiting: Vec<_> = ["inst-b", "inst-c", "inst-d"].map(wish).into();
    bench.step(desired(3, waiting));
    let queued = bench.step(desired(4, vec![wish("inst-b"), wish("inst-c"), stop(wish("inst-d"))]));
    assert_eq!(facts(&queued), [FactBody::Stopped { killed: false }]);
    assert_eq!(
        launches(&bench.step(launched("inst-b"))),
        [""; 0],
        "it is not launched later"
    );
}

#[test]
fn old_and_foreign_snapshots_stop_nothing() {
    let mut bench = Bench::new();
    bench.ready("inst-a");
    let snapshot = |stamp: Stamp| {
        Input::Desired(Desired {
            stamp,
            instances: vec![],
        })
    };
    bench.step(desired(10, vec![wish("inst-a")]));
    assert_eq!(bench.step(snapshot(stamp(9))), [], "overtaken by a newer one");
    bench.step(Input::Connected);
    let alarm = |outputs: Vec<Output>| {
        matches!(
            outputs[..],
            [Output::Alarm {
                code: "ledger_went_backwards",
                ..
            }]
        )
    };
    assert!(alarm(bench.step(snapshot(stamp(9)))));
    let mut foreign = stamp(99);
    foreign.ledger = "other".into();
    bench.step(Input::Connected);
    assert!(alarm(bench.step(snapshot(foreign.clone()))));
    let mut newer = stamp(1);
    newer.epoch = 2;
    assert_eq!(
        stops(&bench.step(snapshot(newer))),
        1,
        "a later epoch counts, whatever its sequence"
    );
    bench.step(gone("inst-a", 0, false));
    bench.step(snapshot(foreign.clone()));
    assert_eq!(
        bench.core.applied(),
        Some(&foreign),
        "nothing runs here, so it may be followed"
    );
}

#[test]
fn a_foreign_ledger_is_followed_when_confirmed() {
    let mut bench = Bench::with(CoreConfig {
        address: None,
        max_launching: 2,
        accept_ledger: Some("other".into()),
    });
    bench.ready("inst-a");
    let mut foreign = stamp(1);
    foreign.ledger = "other".into();
    let outputs = bench.step(Input::Desired(Desired {
        stamp: foreign,
        instances: vec![],
    }));
    assert_eq!(stops(&outputs), 1);
}

#[test]
fn names_that_could_leave_their_directory_are_refused() {
    let mut bench = Bench::new();
    let outputs = bench.step(desired(1, vec![wish("../../etc"), wish("inst-a")]));
    assert!(matches!(
        outputs[0],
        Output::Alarm {
            code: "bad_instance_id",
            ..
        }
    ));
    assert_eq!(launches(&outputs), ["inst-a"]);
}

#[test]
fn adopted_instances_go_on_where_they_were() {
    let adopted = |said, found| {
        let plan = wish("inst-a");
        Input::Adopt(Adopted {
            instance: id("inst-a"),
            devices: plan.devices,
            ready_http: plan.run.ready_http,
            ready_timeout: ms(10_000),
            grace: ms(3_000),
            port: 4242,
            age: ms(9_000),
            said,
            found,
        })
    };
    let cases = [
        (None, Found::Living, "starting"),
        (Some(Said::Started), Found::Living, "running"),
        (Some(Said::Ready), Found::Living, "ready"),
        (Some(Said::Unready), Found::Living, "running"),
        (Some(Said::Ended), Found::Ended, "gone"),
        (Some(Said::Ended), Found::Settled, "unknown"),
    ];
    for (said, found, state) in cases {
        let mut bench = Bench::new();
        bench.now = ms(50);
        assert_eq!(facts(&bench.step(adopted(said, found))), [], "{said:?}");
        assert_eq!(bench.state("inst-a"), state, "{said:?}");
        // The shim repeats itself; only what nobody was told becomes a fact.
        let repeated = facts(&bench.step(launched("inst-a")));
        assert_eq!(repeated.len(), usize::from(said.is_none()), "{said:?}");
        assert_eq!(launches(&bench.step(desired(1, vec![wish("inst-a")]))), [""; 0]);
    }
    let mut bench = Bench::new();
    bench.step(adopted(Some(Said::Started), Found::Living));
    bench.now += ms(1_000);
    assert_eq!(stops(&bench.step(Input::Tick)), 1, "its time to get ready goes on");
}
