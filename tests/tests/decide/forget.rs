//! An operator forgets a node.

use tidemill_domain::command::{Command, CreateCredential};
use tidemill_domain::events::Event;
use tidemill_domain::events::credential::Role;
use tidemill_domain::state::instance::InstanceState;
use tidemill_domain::state::node::NodeState;
use tidemill_domain::time::Span;
use tidemill_tests::cell::Cell;
use tidemill_tests::make::join;

use super::{code, names, node_id, service_id, serving};

#[test]
fn only_a_lost_node_is_forgotten_and_then_nothing_waits_for_it() {
    let (mut cell, node, i) = serving();
    let service = service_id(&cell, "hello");
    let forget = |reason: &str| Command::ForgetNode {
        node,
        reason: reason.into(),
    };
    let (silent, reason) = (Span::from_secs(10), || "silent".to_owned());
    assert_eq!(code(cell.ask(forget(" "))), "invalid");
    assert_eq!(code(cell.ask(forget(&"x".repeat(600)))), "invalid");
    assert_eq!(code(cell.ask(forget("scrapped"))), "wrong_state");
    cell.given(Command::SuspectNode {
        node,
        silent,
        closed: false,
        reason: reason(),
    });
    assert_eq!(code(cell.ask(forget("scrapped"))), "wrong_state");
    cell.given(Command::LoseNode {
        node,
        silent,
        reason: reason(),
    });
    cell.given(Command::DeleteService { service });
    assert!(
        cell.given(Command::SettleService { service }).is_empty(),
        "something of it may be left there"
    );
    let forgotten = cell.given(forget("scrapped"));
    assert!(matches!(&forgotten[..], [Event::NodeLeft(e)] if e.instances.len() == 2 && e.reason.contains("scrapped")));
    assert!(cell.given(forget("scrapped")).is_empty(), "once");
    assert_eq!(cell.state.nodes[&node].state, NodeState::Left);
    assert!(cell.state.nodes[&node].instances.is_empty());
    assert!(i.iter().all(|i| cell.state.instances[i].state == InstanceState::Lost));
    let settled = names(&cell.given(Command::SettleService { service }));
    assert_eq!(settled, ["ServiceDeleted"]);
    // The name is another machine's now, and its cards are whole.
    let mut other = join("n1", 2);
    other.machine_id = "another".into();
    cell.given(Command::JoinNode(other));
    assert_eq!(cell.state.devices.values().map(|d| d.free().0).sum::<u32>(), 2000);
}

#[test]
fn a_forgotten_nodes_name_is_not_bound_to_the_token_that_enrolled_it() {
    let mut cell = Cell::new();
    let mut tokens = Vec::new();
    for hash in [1, 2] {
        cell.given(Command::CreateCredential(CreateCredential {
            hash: [hash; 32],
            role: Role::Node,
            supply: None,
            tenant: None,
            ttl: None,
        }));
        tokens.push(cell.state.credential_hashed(&[hash; 32]).unwrap().id);
    }
    let with = |token| {
        let mut join = join("n1", 1);
        join.credential = Some(token);
        Command::JoinNode(join)
    };
    cell.given(with(tokens[0]));
    let node = node_id(&cell, "n1");
    let (silent, reason) = (Span::from_secs(10), || "silent".to_owned());
    cell.given(Command::SuspectNode {
        node,
        silent,
        closed: false,
        reason: reason(),
    });
    cell.given(Command::LoseNode {
        node,
        silent,
        reason: reason(),
    });
    assert_eq!(code(cell.ask(with(tokens[1]))), "not_allowed");
    cell.given(Command::ForgetNode { node, reason: reason() });
    cell.given(with(tokens[1]));
    assert_eq!(cell.state.nodes[&node].credential, Some(tokens[1]));
}
