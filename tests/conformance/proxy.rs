//! A TCP proxy that can lose either direction, for outcomes nobody is told about.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Forwards to one port until told otherwise.
pub struct Proxy {
    port: u16,
    lose_requests: Arc<AtomicBool>,
    lose_answers: Arc<AtomicBool>,
    _accepting: JoinSet<()>,
}

impl Proxy {
    pub async fn to(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let own_port = listener.local_addr().unwrap().port();
        let (lose_requests, lose_answers) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let (requests, answers) = (Arc::clone(&lose_requests), Arc::clone(&lose_answers));
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)).await else {
                    continue;
                };
                let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
                let (requests, answers) = (Arc::clone(&requests), Arc::clone(&answers));
                connections.spawn(async move {
                    // Either end closing closes both.
                    tokio::select! {
                        () = pump(near_read, far_write, &requests) => {}
                        () = pump(far_read, near_write, &answers) => {}
                    }
                });
            }
        });
        Self {
            port: own_port,
            lose_requests,
            lose_answers,
            _accepting: accepting,
        }
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// From now on bytes towards the server vanish.
    pub fn lose_requests(&self, lose: bool) {
        self.lose_requests.store(lose, Ordering::SeqCst);
    }

    /// From now on bytes from the server vanish.
    pub fn lose_answers(&self, lose: bool) {
        self.lose_answers.store(lose, Ordering::SeqCst);
    }
}

/// Copies until the end, or until something was lost: a stream of bytes with a hole in it is of no use to anyone.
async fn pump(mut from: impl AsyncReadExt + Unpin, mut to: impl AsyncWriteExt + Unpin, lose: &AtomicBool) {
    let mut buffer = vec![0; 64 << 10];
    let mut lost = false;
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if lose.load(Ordering::SeqCst) {
            lost = true;
        } else if lost || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
