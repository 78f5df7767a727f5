//! One suite over every ledger: memory, embedded, JetStream unreplicated and on three servers.
//!
//! A case is a function over a [`fixture::Fixture`]; which backends run it is the table below, and nothing else. What
//! only one backend can suffer (a cut connection, a lazy server) stands in its own module.
#![allow(clippy::unwrap_used)]

#[path = "../conformance/cases.rs"]
mod cases;
#[path = "../conformance/damage.rs"]
mod damage;
#[path = "../conformance/fixture.rs"]
mod fixture;
#[path = "../conformance/jetstream.rs"]
mod jetstream;
#[path = "../conformance/observations.rs"]
mod observations;
#[path = "../conformance/proxy.rs"]
mod proxy;
#[path = "../conformance/writer.rs"]
mod writer;

use fixture::{Cluster, Embedded, Fixture, Memory, Server};

/// Names each case once for each backend that runs it.
macro_rules! conformance {
    ($($backend:ident($fixture:expr): $($module:ident::$case:ident),+;)+) => {$(
        mod $backend {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let mut fixture: Box<dyn Fixture> = Box::new($fixture.await);
                    $module::$case(fixture.as_mut()).await;
                }
            )+
        }
    )+};
}

conformance! {
    memory(Memory::create()):
        cases::order_density_and_chain, cases::two_writers_race, cases::a_foreign_record_stops_the_writer,
        cases::an_oversized_record_is_refused, cases::followers_wait_at_the_seam, cases::full_then_resumed,
        damage::a_changed_record_is_named, damage::an_older_backup_is_noticed, damage::a_deleted_ledger_stays_deleted;
    embedded(Embedded::create()):
        cases::order_density_and_chain, cases::two_writers_race, cases::a_foreign_record_stops_the_writer,
        cases::an_oversized_record_is_refused, cases::followers_wait_at_the_seam, cases::full_then_resumed,
        cases::a_dropped_append_is_resolved_by_the_tail, cases::a_slow_reader_is_dense_across_restarts,
        damage::a_changed_record_is_named, damage::an_older_backup_is_noticed, damage::a_deleted_ledger_stays_deleted;
    jetstream_r1(Server::create()):
        cases::order_density_and_chain, cases::two_writers_race, cases::a_foreign_record_stops_the_writer,
        cases::an_oversized_record_is_refused, cases::followers_wait_at_the_seam, cases::full_then_resumed,
        cases::a_dropped_append_is_resolved_by_the_tail, cases::a_slow_reader_is_dense_across_restarts,
        damage::a_changed_record_is_named, damage::an_older_backup_is_noticed, damage::a_deleted_ledger_stays_deleted;
    jetstream_r3(Cluster::create()):
        cases::order_density_and_chain, cases::two_writers_race, cases::a_foreign_record_stops_the_writer,
        cases::full_then_resumed, cases::a_slow_reader_is_dense_across_restarts,
        damage::a_changed_record_is_named, damage::an_older_backup_is_noticed, damage::a_deleted_ledger_stays_deleted;
}
