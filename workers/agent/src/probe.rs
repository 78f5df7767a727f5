//! One readiness check: `GET` on the instance's port, 2xx is yes.
//!
//! Written on the bare socket: a check is one request and one line of answer, a thousand instances are checked every two
//! seconds, and an HTTP client with its pool would cost more than all else the agent does.

use std::{net::Ipv4Addr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Time a check may take. A server busy with a long step still answers a health check within it.
const TIMEOUT: Duration = Duration::from_secs(2);

/// `HTTP/1.1 200`: all that is read of an answer.
const STATUS_BYTES: usize = 12;

/// Checks; `Err` says what was seen.
pub(crate) async fn probe(port: u16, path: &str) -> Result<(), String> {
    timeout(TIMEOUT, ask(port, path))
        .await
        .unwrap_or_else(|_| Err(format!("no answer within {} ms", TIMEOUT.as_millis())))
}

async fn ask(port: u16, path: &str) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.map_err(text)?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nuser-agent: tidemill-agent\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.map_err(text)?;
    let mut start = [0; STATUS_BYTES];
    stream.read_exact(&mut start).await.map_err(text)?;
    match &start {
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', _, b' ', b'2', ..] => Ok(()),
        [b'H', b'T', b'T', b'P', b'/', .., a, b, c] => {
            let status = String::from_utf8_lossy(&[*a, *b, *c]).into_owned();
            Err(format!("{path} answered {status}"))
        }
        _ => Err(format!("{path} did not answer with HTTP")),
    }
}
