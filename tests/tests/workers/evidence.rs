//! Minutes of traffic and windows of observations go on record, once.

use tidemill_bus::observations::Observations;
use tidemill_domain::command::Command;
use tidemill_domain::events::Event;
use tidemill_domain::events::evidence::{ObservationWindowSealed, RequestCounts, TrafficMinuteClosed};
use tidemill_domain::id::ServiceId;
use tidemill_domain::state::MINUTE;
use tidemill_domain::time::{Span, Timestamp};
use tidemill_evidence::WindowDigest;
use tidemill_kit::observation::{Body, GatewayBeat, TrafficSample};
use tidemill_tests::make::{apply, join, spec};

use crate::scheduling::events;
use crate::world::{World, caught_up};

fn sample(service: ServiceId, arrived: u64, failed: u64) -> TrafficSample {
    TrafficSample {
        service,
        age: Span::from_millis(50),
        seconds: 1,
        requests: RequestCounts {
            arrived,
            ok: arrived - failed,
            failed,
            ..RequestCounts::default()
        },
        queued: arrived / 2,
        in_flight: 0,
        longest_gap: Span::from_millis(10 * failed),
        latency: vec![arrived],
        instances: vec![],
    }
}

fn beat(gateway: &str, samples: Vec<TrafficSample>) -> Body {
    Body::GatewayBeat(GatewayBeat {
        gateway: gateway.into(),
        applied: None,
        samples,
    })
}

fn minutes(world: &World) -> Vec<TrafficMinuteClosed> {
    let events = events(world).into_iter();
    events
        .filter_map(|e| match e {
            Event::TrafficMinuteClosed(minute) => Some(minute),
            _ => None,
        })
        .collect()
}

fn windows(world: &World) -> Vec<ObservationWindowSealed> {
    let events = events(world).into_iter();
    events
        .filter_map(|e| match e {
            Event::ObservationWindowSealed(window) => Some(window),
            _ => None,
        })
        .collect()
}

#[tokio::test]
async fn minutes_are_closed_with_what_two_gateways_saw() {
    let world = World::new().await;
    world.given(apply("busy", spec(0, 1))).await;
    world.given(apply("idle", spec(0, 1))).await;
    let (busy, idle) = (world.service("busy"), world.service("idle"));
    let (mut evidence, token) = world.evidence();
    let begin = world.door_now();
    // The first minute is whole, the second has a hole of 20 s and a second with failures, the third is open.
    world
        .beats(60, &[], |_| {
            vec![
                beat("g1", vec![sample(busy, 10, 0)]),
                beat("g2", vec![sample(busy, 5, 0)]),
            ]
        })
        .await;
    world
        .beats(10, &[], |_| vec![beat("g1", vec![sample(busy, 4, 3)])])
        .await;
    world.beats(20, &[], |_| vec![]).await;
    world.beats(40, &[], |_| vec![beat("g1", vec![])]).await;
    world
        .until("two minutes of both are on record", |s| {
            [busy, idle]
                .iter()
                .all(|id| s.services[id].traffic_through == Some(begin + Span::from_secs(120)))
        })
        .await;
    let closed = minutes(&world);
    assert_eq!(closed.len(), 4);
    let of = |service: ServiceId, minute: Timestamp| {
        let mut all = closed.iter();
        all.find(|m| m.service == service && m.minute == minute).unwrap()
    };
    let first = of(busy, begin);
    assert_eq!((first.requests.arrived, first.requests.ok), (900, 900));
    assert_eq!(
        (first.covered_seconds, first.bad_seconds, first.peak_queued),
        (60, 0, 7)
    );
    assert_eq!(first.latency[0], 900);
    let second = of(busy, begin + MINUTE);
    assert_eq!((second.requests.arrived, second.requests.failed), (40, 30));
    assert_eq!((second.covered_seconds, second.bad_seconds), (40, 10));
    assert_eq!(second.longest_gap, Span::from_millis(30));
    let quiet = of(idle, begin);
    assert_eq!((quiet.requests.arrived, quiet.covered_seconds), (0, 60));

    // A restart reads it all again and has nothing to add.
    caught_up(&mut evidence, &world.observations).await;
    token.cancel();
    evidence.ended().await;
    let (mut again, _token) = world.evidence();
    caught_up(&mut again, &world.observations).await;
    assert_eq!(minutes(&world).len(), 4);
}

#[tokio::test]
async fn a_late_sample_is_counted_where_it_can_still_be() {
    let world = World::new().await;
    world.given(apply("busy", spec(0, 1))).await;
    let busy = world.service("busy");
    let (_evidence, _token) = world.evidence();
    let begin = world.door_now();
    world
        .beats(70, &[], |_| vec![beat("g1", vec![sample(busy, 1, 0)])])
        .await;
    let late = TrafficSample {
        age: Span::from_secs(30),
        seconds: 20,
        ..sample(busy, 1000, 0)
    };
    world.beats(1, &[], |_| vec![beat("g2", vec![late.clone()])]).await;
    world
        .beats(60, &[], |_| vec![beat("g1", vec![sample(busy, 1, 0)])])
        .await;
    world
        .until("two minutes are on record", |s| {
            s.services[&busy].traffic_through == Some(begin + Span::from_secs(120))
        })
        .await;
    let arrived: Vec<u64> = minutes(&world).iter().map(|m| m.requests.arrived).collect();
    assert_eq!(arrived, [60, 1059]);
}

#[tokio::test]
async fn windows_are_sealed_with_a_digest_that_can_be_recomputed() {
    let world = World::new().await;
    world.given(Command::JoinNode(join("n1", 1))).await;
    let node = world.node("n1");
    let (_evidence, _token) = world.evidence();
    world.beats(13 * 60, &[node], |_| vec![]).await;
    world
        .until("two windows are sealed", |s| s.cell.observations_through >= 599)
        .await;
    let sealed = windows(&world);
    assert_eq!(sealed.len(), 2);
    assert_eq!((sealed[0].first, sealed[0].last), (1, 299));
    assert_eq!((sealed[1].first, sealed[1].last), (300, 599));
    for window in &sealed {
        let blocks = world
            .observations
            .read(window.first, (window.last - window.first + 1) as usize, usize::MAX)
            .await
            .unwrap();
        let mut digest = WindowDigest::default();
        blocks.iter().for_each(|b| digest.add(&b.body));
        assert_eq!(digest.finish(), window.digest);
        assert_eq!(window.beats[0].beats, window.last - window.first + 1);
    }
}
