//! Checks of a declaration: each says the key, what is wrong, and what would be right.

use crate::events::service::{DeviceRequest, FetchFile, FetchTarget, Run, Runtime, ServiceSpec};
use crate::rejection::Rejection;
use crate::time::Span;
use crate::unit::Milli;

/// Most replicas of a service.
pub const MAX_REPLICAS: u32 = 10_000;
/// Most devices of an instance.
pub const MAX_DEVICES: u32 = 64;
/// Longest command line or environment, in bytes: several declarations fit one record.
const MAX_TEXT: usize = 32 * 1024;
/// Most files of an instance.
pub const MAX_FETCH: usize = 64;
/// Most processes an instance may be allowed.
pub const MAX_PROCESSES: u32 = 4_000_000;
/// Longest queue of a service in a gateway.
pub const MAX_QUEUE: u32 = 100_000;
const MAX_QUEUE_TIMEOUT: Span = Span::from_secs(3600);
/// Below this no program starts.
const LEAST_MEMORY: u64 = 4 << 20;
/// Longest URL, path or image name.
const MAX_PATH: usize = 2048;
/// Longest timeout or grace.
const MAX_SPAN: Span = Span::from_secs(24 * 3600);

fn invalid<T>(key: &str, reason: impl Into<String>) -> Result<T, Rejection> {
    Err(Rejection::Invalid {
        key: key.to_owned(),
        reason: reason.into(),
    })
}

/// Whether the declaration can be meant.
pub fn service_spec(spec: &ServiceSpec) -> Result<(), Rejection> {
    run(&spec.run)?;
    device_request(&spec.devices)?;
    let scale = &spec.scale;
    if scale.max == 0 || scale.max > MAX_REPLICAS {
        return invalid(
            "scale.max",
            format!("{} is out of range: 1 to {MAX_REPLICAS}", scale.max),
        );
    }
    if scale.min > scale.max {
        return invalid("scale.min", format!("{} is above scale.max = {}", scale.min, scale.max));
    }
    if scale.standby > scale.max {
        return invalid(
            "scale.standby",
            format!("{} is above scale.max = {}", scale.standby, scale.max),
        );
    }
    if scale.concurrency == Some(0) {
        return invalid("scale.target.concurrency", "0 would serve nothing; use 1 or more");
    }
    if spec.placement.supply.is_empty() {
        return invalid(
            "placement.supply",
            "it allows nothing; name at least one supply kind or leave it out",
        );
    }
    if let Some(host) = &spec.route.host
        && (host.is_empty()
            || host.len() > 253
            || host
                .bytes()
                .any(|b| !(b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b))))
    {
        return invalid("route.host", format!("`{host}` is not a host name in lower case"));
    }
    if spec.route.queue.is_some_and(|queue| queue > MAX_QUEUE) {
        return invalid("route.queue", format!("it is out of range: 0 to {MAX_QUEUE}"));
    }
    if let Some(timeout) = spec.route.queue_timeout
        && (timeout == Span::ZERO || timeout > MAX_QUEUE_TIMEOUT)
    {
        return invalid("route.queue_timeout", "it is out of range: above 0, at most 1h");
    }
    // What every machine calls itself would take the gateway's paths away from all other services.
    if let Some(host) = &spec.route.host
        && (host == "localhost" || host.ends_with(".localhost") || host.parse::<core::net::Ipv4Addr>().is_ok())
    {
        return invalid(
            "route.host",
            format!("`{host}` is the gateway's own; use a name of the service"),
        );
    }
    Ok(())
}

fn device_request(devices: &DeviceRequest) -> Result<(), Rejection> {
    if devices.count == 0 || devices.count > MAX_DEVICES {
        return invalid(
            "devices.count",
            format!("{} is out of range: 1 to {MAX_DEVICES}", devices.count),
        );
    }
    if devices.share == Milli::ZERO || devices.share > Milli::WHOLE {
        return invalid("devices.share", "it is out of range: 0.001 to 1");
    }
    if devices.count > 1 && devices.share < Milli::WHOLE {
        return invalid(
            "devices.share",
            "a share goes with one device; leave it out or set devices.count to 1",
        );
    }
    Ok(())
}

fn run(run: &Run) -> Result<(), Rejection> {
    program(run)?;
    let fetch: usize = run.fetch.iter().map(|file| file.url.len()).sum();
    let text: usize = run.command.iter().map(String::len).sum::<usize>()
        + run.env.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>();
    if text + fetch > MAX_TEXT {
        return invalid(
            "run",
            format!("command, environment and URLs are longer than {MAX_TEXT} bytes together"),
        );
    }
    for (key, value) in &run.env {
        if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
            return invalid("run.env", format!("`{key}` cannot be an environment variable"));
        }
        if key.starts_with("TIDEMILL_") {
            return invalid(
                "run.env",
                format!("`{key}` is reserved: names that begin with TIDEMILL_ are set for you"),
            );
        }
    }
    fetched(run)?;
    if run.limits.cpu == Some(Milli::ZERO) {
        return invalid("run.limits.cpu", "0 would run nothing; use 0.001 or more");
    }
    if run.limits.memory_bytes.is_some_and(|bytes| bytes < LEAST_MEMORY) {
        return invalid("run.limits.memory", "no program runs in so little; use 4MiB or more");
    }
    if run.limits.processes == Some(0) {
        return invalid("run.limits.processes", "0 would run nothing; use 1 or more");
    }
    if let Some(path) = &run.ready_http
        && (!path.starts_with('/') || path.len() > 1024 || path.chars().any(|c| c.is_control() || c == ' '))
    {
        return invalid("run.ready.http", "it is not a path; it begins with / and has no spaces");
    }
    if run.ready_timeout == Span::ZERO || run.ready_timeout > MAX_SPAN {
        return invalid("run.ready.timeout", "it is out of range: above 0, at most 24h");
    }
    if run.ready_hold > MAX_SPAN {
        return invalid("run.ready.hold", "it is out of range: at most 24h");
    }
    if run.stop_grace > MAX_SPAN {
        return invalid("run.stop.grace", "it is out of range: at most 24h");
    }
    Ok(())
}

/// What is executed: a program of the node, or an image.
fn program(run: &Run) -> Result<(), Rejection> {
    let empty = || run.command.first().is_none_or(|word| word.trim().is_empty());
    match (run.runtime, &run.image) {
        (Runtime::Process, Some(_)) => {
            return invalid("run.image", "it goes with `runtime: docker`; add that or leave it out");
        }
        (Runtime::Docker, None) => {
            return invalid("run.image", "runtime docker needs one, such as image: registry/chat:1");
        }
        (Runtime::Docker, Some(image)) => {
            let odd = |c: char| !(c.is_ascii_alphanumeric() || "-._/:@".contains(c));
            if image.is_empty() || image.len() > 512 || image.starts_with('-') || image.contains(odd) {
                return invalid("run.image", "it is not the name of an image, such as registry/chat:1");
            }
        }
        (Runtime::Process, None) => {}
    }
    let image_alone = run.runtime == Runtime::Docker && run.command.is_empty();
    if empty() && !image_alone {
        return invalid(
            "run.command",
            "it names no program; write it as a list, such as [python3, serve.py]",
        );
    }
    if run.command.iter().any(|word| word.contains('\0')) {
        return invalid("run.command", "it contains a NUL byte");
    }
    Ok(())
}

fn fetched(run: &Run) -> Result<(), Rejection> {
    if run.fetch.len() > MAX_FETCH {
        return invalid("run.fetch", format!("more than {MAX_FETCH} files are listed"));
    }
    let mut taken: Vec<&str> = Vec::new();
    for FetchFile { url, target, .. } in &run.fetch {
        let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
        let plain = url.len() <= MAX_PATH && url.bytes().all(|b| b.is_ascii_graphic());
        if !plain || rest.is_none_or(|rest| rest.is_empty() || rest.starts_with('/')) {
            return invalid(
                "run.fetch",
                "a url begins with http:// or https:// and a host, and has no spaces",
            );
        }
        match target {
            FetchTarget::Image if run.runtime != Runtime::Docker => {
                return invalid("run.fetch", "`load: true` goes with `runtime: docker` alone");
            }
            FetchTarget::Image => {}
            FetchTarget::File(to) => {
                let bad = |part: &str| part.is_empty() || part == "." || part == "..";
                if to.len() > 512 || to.contains(|c: char| c.is_control()) || to.split('/').any(bad) {
                    let reason = format!("`{}` is not a path below the working directory", to.escape_debug());
                    return invalid("run.fetch", reason);
                }
                let below = |a: &str, b: &str| a.strip_prefix(b).is_some_and(|rest| rest.starts_with('/'));
                if taken
                    .iter()
                    .any(|other| *other == to || below(other, to) || below(to, other))
                {
                    return invalid(
                        "run.fetch",
                        format!("two files go to `{to}`; give each a path of its own"),
                    );
                }
                taken.push(to);
            }
        }
    }
    Ok(())
}
