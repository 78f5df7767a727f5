//! How much the gateway costs beside going direct. Printed, not asserted: the machine decides.

use std::time::{Duration, Instant};

use http::Method;
use tokio::task::JoinSet;

use super::support::*;
use crate::Limits;

const CLIENTS: usize = 16;

async fn requests_in(address: std::net::SocketAddr, path: &'static str, time: Duration) -> usize {
    let end = Instant::now() + time;
    let mut all = JoinSet::new();
    for _ in 0..CLIENTS {
        all.spawn(async move {
            let mut conn = ClientConn::open(address).await;
            let mut done = 0;
            while Instant::now() < end {
                let reply = conn.send(request(Method::GET, path)).await.unwrap();
                assert_eq!(reply.status, 200);
                done += 1;
            }
            done
        });
    }
    all.join_all().await.into_iter().sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn throughput_beside_direct() {
    let gw = gateway(Limits::default()).await;
    let a = Echo::start("a", Duration::ZERO).await;
    let b = Echo::start("b", Duration::ZERO).await;
    gw.route(route(&[("inst-a", a.address), ("inst-b", b.address)]));
    let time = Duration::from_millis(1500);
    let direct = requests_in(a.address, "/", time).await;
    let through = requests_in(gw.address, "/svc/", time).await;
    let rate = |n: usize| n as f64 / time.as_secs_f64();
    println!(
        "direct {:.0}/s, through the gateway {:.0}/s, ratio {:.2} (client, gateway and instances in one process)",
        rate(direct),
        rate(through),
        through as f64 / direct as f64
    );
    gw.at_rest().await;
}
