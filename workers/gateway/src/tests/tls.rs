//! TLS at the front: both protocols, fresh certificates, bad files.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

use super::support::*;
use crate::{Gateway, Limits, TlsFiles};

/// Writes a new self-signed pair and returns the certificate.
fn write_pair(dir: &Path) -> CertificateDer<'static> {
    let pair = rcgen::generate_simple_self_signed(["gateway.test".to_owned()]).unwrap();
    std::fs::write(dir.join("cert.pem"), pair.cert.pem()).unwrap();
    std::fs::write(dir.join("key.pem"), pair.signing_key.serialize_pem()).unwrap();
    pair.cert.der().clone()
}

fn files(dir: &Path) -> TlsFiles {
    TlsFiles {
        cert: dir.join("cert.pem"),
        key: dir.join("key.pem"),
    }
}

async fn shake(
    address: std::net::SocketAddr,
    trusted: &CertificateDer<'static>,
    alpn: &[&[u8]],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|p| p.to_vec()).collect();
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("gateway.test").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

#[tokio::test]
async fn both_protocols_are_spoken_and_certificates_change_under_way() {
    let dir = tempfile::tempdir().unwrap();
    let first = write_pair(dir.path());
    let mut config = config(&dir, Limits::default());
    config.tls = Some(files(dir.path()));
    let gw = gateway_with(config, dir).await;
    let a = Echo::start("a", Duration::ZERO).await;
    gw.route(route(&[("inst-a", a.address)]));

    let stream = shake(gw.address, &first, &[b"http/1.1"]).await.unwrap();
    let (mut sender, conn) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(conn);
    let ask = || request(http::Method::GET, "/svc/x");
    let reply = sender.send_request(ask()).await.unwrap();
    assert_eq!(reply.status(), 200);

    let stream = shake(gw.address, &first, &[b"h2", b"http/1.1"]).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut shared, conn) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(conn);
    let ask2 = http::Request::get("https://gateway.test/svc/x").body(Full::<bytes::Bytes>::default());
    let reply = shared.send_request(ask2.unwrap()).await.unwrap();
    let body = reply.into_body().collect().await.unwrap().to_bytes();
    assert!(body.starts_with(b"a GET /x 0 gateway.test "), "{body:?}");

    // The key alone is of no use yet; with its certificate it is.
    let spare = tempfile::tempdir().unwrap();
    let second = write_pair(spare.path());
    std::fs::copy(spare.path().join("key.pem"), gw.dir.path().join("key.pem")).unwrap();
    assert!(shake(gw.address, &first, &[]).await.is_ok());
    std::fs::copy(spare.path().join("cert.pem"), gw.dir.path().join("cert.pem")).unwrap();
    let mut fresh = false;
    for _ in 0..1000 {
        fresh = shake(gw.address, &second, &[]).await.is_ok();
        if fresh {
            break;
        }
        // tidy: waits for the gateway to look at its files, bounded
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(fresh, "the new certificate was not taken up");
    assert!(shake(gw.address, &first, &[]).await.is_err());
    // What was open goes on.
    assert_eq!(sender.send_request(ask()).await.unwrap().status(), 200);
    gw.at_rest().await;
}

#[tokio::test]
async fn files_that_cannot_serve_stop_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let data = tempfile::tempdir().unwrap();
    let start = |files: TlsFiles| {
        let mut config = config(&data, Limits::default());
        config.tls = Some(files);
        async move { Gateway::bind(config).await.unwrap_err() }
    };
    let missing = start(files(dir.path())).await;
    assert_eq!(missing.code(), "tls_file_bad");
    write_pair(dir.path());
    let other = tempfile::tempdir().unwrap();
    write_pair(other.path());
    for (cert, key, why) in [
        (
            other.path().join("cert.pem"),
            dir.path().join("key.pem"),
            "not that of the certificate",
        ),
        (dir.path().join("key.pem"), dir.path().join("key.pem"), "no certificate"),
        (dir.path().join("cert.pem"), dir.path().join("cert.pem"), ""),
    ] {
        let error = start(TlsFiles { cert, key }).await;
        assert_eq!(error.code(), "tls_file_bad");
        assert!(error.to_string().contains(why), "{error}");
    }
    std::fs::write(
        dir.path().join("cert.pem"),
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    )
    .unwrap();
    assert_eq!(start(files(dir.path())).await.code(), "tls_file_bad");
}
