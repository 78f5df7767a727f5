//! Given many nodes that fall silent at once, then their work stays where it is until an operator has judged, and nobody
//! goes without an answer meanwhile.

use tidemill_domain::command::Command;
use tidemill_domain::events::Event;
use tidemill_domain::events::service::Spread;
use tidemill_domain::policy::replicas::ReplicaAction;
use tidemill_domain::rejection::Rejection;
use tidemill_domain::state::breaker::WITHIN;
use tidemill_domain::state::node::NodeState;
use tidemill_domain::time::Span;
use tidemill_tests::cell::Cell;
use tidemill_tests::make::{apply, spec};

use crate::drive::*;

/// Nodes named `own0…` and `lent0…` of one device each.
fn pool(own: usize, lent: usize) -> Cell {
    let mut cell = Cell::new();
    for (provider, count) in [("own", own), ("lent", lent)] {
        for n in 0..count {
            cell.given(of_provider(&format!("{provider}{n}"), provider, 1));
        }
    }
    cell
}

fn lose(cell: &mut Cell, name: &str) -> Result<Vec<Event>, Rejection> {
    let node = node(cell, name);
    cell.ask(Command::LoseNode {
        node,
        silent: Span::from_secs(20),
        reason: "silent".into(),
    })
}

fn trips(events: &[Event]) -> bool {
    events.iter().any(|e| matches!(e, Event::BreakerTripped(_)))
}

/// Twelve nodes that each run one of twelve replicas, and three that are free; five of two providers are doubted.
const SILENT: [&str; 5] = ["own0", "own1", "own2", "lent0", "lent1"];

fn tripped() -> Cell {
    let mut cell = pool(8, 7);
    let mut spec = spec(12, 100);
    spec.placement.spread = Spread::None;
    cell.given(apply("hello", spec));
    schedule(&mut cell);
    all_ready(&mut cell, "hello");
    for (n, name) in SILENT.iter().enumerate() {
        cell.wait(Span::from_secs(2));
        let events = falls_silent(&mut cell, name);
        assert_eq!(trips(&events), n == 4, "the fifth is one too many");
        if n < 4 {
            assert!(!cell.state.breaker_tripped());
        }
    }
    cell
}

fn requests(cell: &Cell, of: &str) -> u32 {
    let actions = actions(cell, of).into_iter();
    let counts = actions.map(|action| match action {
        ReplicaAction::Request { count, .. } => count,
        _ => 0,
    });
    counts.sum()
}

#[test]
fn it_trips_in_the_commit_that_doubts_one_too_many_and_holds_what_runs_there() {
    let mut cell = tripped();
    assert!(cell.state.breaker_tripped());
    let before = live(&cell, "hello").len();
    assert_eq!(
        requests(&cell, "hello"),
        0,
        "nothing is started in place of what may run"
    );
    assert_eq!(drains(&cell, "hello"), [], "and nothing is taken away");
    assert!(lose(&mut cell, "own0").is_err(), "nobody gives up a node meanwhile");
    cell.wait(Span::from_secs(3600));
    schedule(&mut cell);
    assert_eq!(live(&cell, "hello").len(), before, "an hour later it is the same");
}

/// Table: which losses are one for the breaker. Fifteen nodes in every case, given as (own, lent) silent, apart seconds.
#[test]
fn few_nodes_one_provider_or_a_slow_loss_never_trip_it() {
    let cases = [
        ("four of two providers", (8, 7), (2, 2), 1, false),
        ("five of one provider", (8, 7), (5, 0), 1, false),
        ("five of two", (8, 7), (4, 1), 1, true),
        ("five of sixteen, less than a third", (8, 8), (3, 2), 1, false),
        ("six of eighteen", (9, 9), (3, 3), 1, true),
        ("all of six", (3, 3), (3, 2), 1, true),
        ("five within more than its time", (8, 7), (3, 2), 8, false),
        ("five within its time", (8, 7), (3, 2), 7, true),
    ];
    for (case, (own, lent), (own_silent, lent_silent), apart, expected) in cases {
        let mut cell = pool(own, lent);
        let names = (0..own_silent)
            .map(|n| format!("own{n}"))
            .chain((0..lent_silent).map(|n| format!("lent{n}")));
        for name in names {
            falls_silent(&mut cell, &name);
            cell.wait(Span::from_secs(apart));
        }
        assert_eq!(cell.state.breaker_tripped(), expected, "{case}");
    }
}

#[test]
fn replicas_missing_for_another_reason_are_made_all_the_same() {
    let mut cell = tripped();
    let certain = live(&cell, "hello")
        .into_iter()
        .find(|i| cell.state.nodes[&i.node.unwrap()].state == NodeState::Ready)
        .map(|i| i.id)
        .unwrap();
    let at = cell.state.instances[&certain].node.unwrap();
    cell.given(tidemill_tests::make::fact(at, certain, tidemill_tests::make::failed()));
    cell.wait(Span::from_secs(400));
    assert_eq!(requests(&cell, "hello"), 1);
}

#[test]
fn a_service_of_which_nothing_else_is_left_gets_one_replica() {
    let mut cell = pool(8, 7);
    let mut wanted = spec(3, 100);
    wanted.placement.spread = Spread::None;
    cell.given(apply("hello", wanted));
    schedule(&mut cell);
    all_ready(&mut cell, "hello");
    let mut silent: Vec<String> = live(&cell, "hello")
        .iter()
        .map(|i| cell.state.nodes[&i.node.unwrap()].name.to_string())
        .collect();
    // Idle nodes of both providers go with them.
    for name in ["own7", "lent6", "own6", "lent5"] {
        if silent.len() < 5 && !silent.iter().any(|s| s == name) {
            silent.push(name.to_owned());
        }
    }
    for name in &silent {
        falls_silent(&mut cell, name);
    }
    assert!(cell.state.breaker_tripped(), "{silent:?}");
    assert_eq!(requests(&cell, "hello"), 1);
    schedule(&mut cell);
    assert_eq!(live(&cell, "hello").len(), 4);
}

#[test]
fn once_confirmed_the_work_moves_and_the_same_doubts_do_not_trip_it_again() {
    let mut cell = tripped();
    let confirm = |reason: &str| Command::ConfirmBreaker { reason: reason.into() };
    assert!(cell.ask(confirm("")).is_err(), "a reason is on record");
    let events = cell.given(confirm("the site burns"));
    assert!(matches!(events[..], [Event::BreakerConfirmed(_)]));
    assert!(!cell.state.breaker_tripped());
    let replaced = requests(&cell, "hello");
    assert!(replaced >= 3, "all that ran there is missing: {replaced}");
    let again = falls_silent(&mut cell, "own3");
    assert!(!trips(&again), "five of these were judged");
    assert!(lose(&mut cell, "own0").is_ok());
    assert_eq!(cell.given(confirm("again")), Vec::<Event>::new());
}

#[test]
fn a_reset_judges_every_node_by_itself_and_new_doubts_count_anew() {
    let mut cell = tripped();
    cell.given(Command::ResetBreaker {
        reason: "the switch is mended".into(),
    });
    for name in SILENT {
        is_heard(&mut cell, name);
    }
    assert_eq!(requests(&cell, "hello"), 0, "what ran there still runs");
    cell.wait(WITHIN);
    let tripped: Vec<bool> = SILENT
        .iter()
        .map(|name| trips(&falls_silent(&mut cell, name)))
        .collect();
    assert_eq!(tripped, [false, false, false, false, true]);
}

#[test]
fn nodes_that_are_heard_again_end_the_mass_loss_one_by_one() {
    let mut cell = tripped();
    assert!(cell.state.mass_loss(None).is_some());
    cell.wait(Span::from_secs(3600));
    assert!(cell.state.mass_loss(None).is_some(), "time alone judges nothing");
    is_heard(&mut cell, "own0");
    assert!(cell.state.mass_loss(None).is_none(), "four are few");
}
