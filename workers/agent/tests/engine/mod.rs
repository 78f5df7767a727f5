//! The engine as the tests see it: an image made here, and containers counted by their labels.

use std::{collections::HashMap, fs, path::Path, process::Command};

use bollard::{
    API_DEFAULT_VERSION, Docker,
    models::ContainerSummary,
    query_parameters::{CreateImageOptions, ListContainersOptions, RemoveContainerOptions},
};
use futures::StreamExt;
use tokio::sync::OnceCell;

/// The image of the tests: one static program, `/program`, which serves if nothing else is said.
pub const IMAGE: &str = "tidemill-agent-test:1";

/// The engine with the image, or `None` with a word where no engine answers.
pub async fn engine() -> Option<Docker> {
    static IMAGE_MADE: OnceCell<()> = OnceCell::const_new();
    let socket = std::env::var("DOCKER_HOST").unwrap_or_else(|_| "unix:///var/run/docker.sock".to_owned());
    let docker = match Docker::connect_with_unix(&socket, 60, API_DEFAULT_VERSION) {
        Ok(docker) => docker.negotiate_version().await,
        Err(error) => Err(error),
    };
    match docker {
        Ok(docker) => {
            IMAGE_MADE.get_or_init(|| make_image(&docker)).await;
            Some(docker)
        }
        Err(error) => {
            println!("skipped: no Docker engine answers at {socket}: {error}");
            None
        }
    }
}

async fn make_image(docker: &Docker) {
    let dir = tempfile::tempdir().unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/engine/program.rs");
    let made = Command::new("rustc")
        .args([
            "--edition",
            "2024",
            "-O",
            "-C",
            "target-feature=+crt-static",
            "-C",
            "strip=symbols",
            "-o",
        ])
        .arg(dir.path().join("program"))
        .arg(source)
        .status()
        .unwrap();
    assert!(made.success(), "the containers' program is built");
    let archive = tar("program", &fs::read(dir.path().join("program")).unwrap());
    let options = CreateImageOptions {
        from_src: Some("-".into()),
        repo: Some("tidemill-agent-test".into()),
        tag: Some("1".into()),
        changes: vec![r#"ENTRYPOINT ["/program"]"#.into(), r#"CMD ["serve"]"#.into()],
        ..CreateImageOptions::default()
    };
    let mut answers =
        std::pin::pin!(docker.create_image(Some(options), Some(bollard::body_full(archive.into())), None));
    while let Some(answer) = answers.next().await {
        answer.unwrap();
    }
}

/// An archive of one executable file.
fn tar(name: &str, content: &[u8]) -> Vec<u8> {
    let mut header = [0u8; 512];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000755\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{:011o}\0", content.len()));
    put(136, "00000000000\0");
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\0");
    put(263, "00");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut archive = header.to_vec();
    archive.extend_from_slice(content);
    archive.resize(archive.len().next_multiple_of(512) + 1024, 0);
    archive
}

/// Containers that carry the node's mark.
pub async fn containers(docker: &Docker, node: &str) -> Vec<ContainerSummary> {
    let options = ListContainersOptions {
        all: true,
        filters: Some(HashMap::from([(
            "label".to_owned(),
            vec![format!("tidemill.node={node}")],
        )])),
        ..ListContainersOptions::default()
    };
    docker.list_containers(Some(options)).await.unwrap()
}

/// Removes them.
pub async fn clear(docker: &Docker, node: &str) {
    for container in containers(docker, node).await {
        let options = RemoveContainerOptions {
            force: true,
            ..RemoveContainerOptions::default()
        };
        let _ = docker.remove_container(&container.id.unwrap(), Some(options)).await;
    }
}

/// Everything in the log files of an instance.
pub fn output(home: &Path) -> String {
    let mut files: Vec<_> = fs::read_dir(home)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("log."))
        })
        .collect();
    files.sort();
    files
        .iter()
        .map(|path| fs::read_to_string(path).unwrap_or_default())
        .collect()
}
