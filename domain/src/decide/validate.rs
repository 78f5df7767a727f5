//! Checks of a declaration: each says the key, what is wrong, and what would be right.

use crate::events::service::{DeviceRequest, ServiceSpec};
use crate::rejection::Rejection;
use crate::time::Span;
use crate::unit::Milli;

/// Most replicas of a service.
pub const MAX_REPLICAS: u32 = 10_000;
/// Most devices of an instance.
pub const MAX_DEVICES: u32 = 64;
/// Longest command line or environment, in bytes: several declarations fit one record.
const MAX_TEXT: usize = 32 * 1024;
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
    if spec.run.command.first().is_none_or(|word| word.trim().is_empty()) {
        return invalid(
            "run.command",
            "it names no program; write it as a list, such as [python3, serve.py]",
        );
    }
    let text: usize = spec.run.command.iter().map(String::len).sum::<usize>()
        + spec.run.env.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>();
    if text > MAX_TEXT {
        return invalid(
            "run",
            format!("command and environment are longer than {MAX_TEXT} bytes together"),
        );
    }
    if spec.run.command.iter().any(|word| word.contains('\0')) {
        return invalid("run.command", "it contains a NUL byte");
    }
    for (key, value) in &spec.run.env {
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
    if let Some(path) = &spec.run.ready_http
        && (!path.starts_with('/') || path.len() > 1024 || path.chars().any(|c| c.is_control() || c == ' '))
    {
        return invalid("run.ready.http", "it is not a path; it begins with / and has no spaces");
    }
    if spec.run.ready_timeout == Span::ZERO || spec.run.ready_timeout > MAX_SPAN {
        return invalid("run.ready.timeout", "it is out of range: above 0, at most 24h");
    }
    if spec.run.stop_grace > MAX_SPAN {
        return invalid("run.stop.grace", "it is out of range: at most 24h");
    }
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
