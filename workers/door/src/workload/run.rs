//! What an instance executes: the `run` of a declaration.
//!
//! Files to fetch are named by the hash of their content, which is asked for rather than learnt from the first
//! download: what a service runs on is then in its declaration, and a changed file behind the same URL is refused.

use std::collections::BTreeMap;
use std::str::FromStr;

use tidemill_domain::decide::validate::{MAX_FETCH, MAX_PROCESSES};
use tidemill_domain::events::service::{FetchFile, FetchTarget, HostLimits, Run, Runtime};
use tidemill_domain::time::Span;
use tidemill_domain::unit::{Blake3, Milli};

use super::error::WorkloadError;
use super::reader::{Field, Keys, Object};

type Result<T> = std::result::Result<T, WorkloadError>;

const DEFAULT_READY_TIMEOUT: Span = Span::from_secs(300);
/// Long enough to see a version that dies of its first requests, short enough to be waited for.
const DEFAULT_READY_HOLD: Span = Span::from_secs(2);
const DEFAULT_GRACE: Span = Span::from_secs(30);

const RUN: Keys = Keys {
    known: &["runtime", "command", "image", "env", "limits", "ready", "stop"],
    reserved: &["fetch"],
};
const READY: Keys = Keys {
    known: &["http", "timeout", "hold"],
    reserved: &[],
};
const STOP: Keys = Keys {
    known: &["grace"],
    reserved: &[],
};
const FETCH: Keys = Keys {
    known: &["url", "blake3", "to", "load"],
    reserved: &[],
};
const LIMITS: Keys = Keys {
    known: &["cpu", "memory", "processes"],
    reserved: &[],
};

/// Reads `run`, which must be there.
pub(super) fn read(root: &Object<'_>, warnings: &mut Vec<String>) -> Result<Run> {
    let run = root.need("run", "{command: [python3, serve.py]}")?.object(&RUN)?;
    let runtime = match run.get("runtime") {
        Some(runtime) => runtime.word(&Runtime::WORDS)?,
        None => Runtime::Process,
    };
    let ready = run.object("ready", &READY)?;
    let stop = run.object("stop", &STOP)?;
    if let (Runtime::Process, Some(limits)) = (runtime, run.get("limits")) {
        warnings.push(format!(
            "`{}` at line {} is kept and not enforced yet: limits hold for runtime docker alone",
            limits.path, limits.line
        ));
    }
    Ok(Run {
        runtime,
        command: command(&run, runtime)?,
        image: run.get("image").map(|f| f.text().map(str::to_owned)).transpose()?,
        env: env(&run, warnings)?,
        fetch: fetch(&run)?,
        limits: limits(&run.object("limits", &LIMITS)?)?,
        ready_http: ready.get("http").map(|f| f.text().map(str::to_owned)).transpose()?,
        ready_timeout: ready
            .get("timeout")
            .map_or(Ok(DEFAULT_READY_TIMEOUT), |f| f.duration())?,
        ready_hold: ready.get("hold").map_or(Ok(DEFAULT_READY_HOLD), |f| f.duration())?,
        stop_grace: stop.get("grace").map_or(Ok(DEFAULT_GRACE), |f| f.duration())?,
    })
}

/// An image has a command of its own; a process has none.
fn command(run: &Object<'_>, runtime: Runtime) -> Result<Vec<String>> {
    let command = match (runtime, run.get("command")) {
        (Runtime::Docker, None) => return Ok(vec![]),
        _ => run.need("command", "[python3, serve.py]")?,
    };
    if let super::tree::Value::Scalar { .. } = command.value {
        return Err(command.invalid("it takes a list of program and arguments, such as [python3, serve.py]"));
    }
    command.texts()
}

fn fetch(run: &Object<'_>) -> Result<Vec<FetchFile>> {
    let Some(field) = run.get("fetch") else {
        return Ok(vec![]);
    };
    let items = field.list();
    if items.len() > MAX_FETCH {
        return Err(field.invalid(format!("it lists {} files, at most {MAX_FETCH} go", items.len())));
    }
    items.iter().map(fetch_file).collect()
}

fn fetch_file(item: &Field<'_>) -> Result<FetchFile> {
    let file = item.object(&FETCH)?;
    let url = file.need("url", "https://example.com/weights.bin")?;
    let blake3 = file.need("blake3", "the 64 digits that `b3sum FILE` prints")?;
    let load = match file.get("load") {
        Some(load) => load.word(&[("true", true), ("false", false)])?,
        None => false,
    };
    let target = match (load, file.get("to")) {
        (true, Some(to)) => return Err(to.invalid("an archive of images is loaded, not put anywhere; leave it out")),
        (true, None) => FetchTarget::Image,
        (false, Some(to)) => FetchTarget::File(to.text()?.to_owned()),
        (false, None) => {
            let last = url
                .text()?
                .split(['?', '#'])
                .next()
                .and_then(|path| path.rsplit('/').next());
            match last.filter(|name| !name.is_empty()) {
                Some(name) => FetchTarget::File(name.to_owned()),
                None => return Err(url.invalid("its path ends in no file name; add `to`, such as to: weights.bin")),
            }
        }
    };
    Ok(FetchFile {
        url: url.text()?.to_owned(),
        blake3: Blake3::from_str(blake3.text()?).map_err(|error| blake3.invalid(error.to_string()))?,
        target,
    })
}

fn limits(limits: &Object<'_>) -> Result<HostLimits> {
    Ok(HostLimits {
        cpu: limits.get("cpu").map(|f| f.thousandths().map(Milli)).transpose()?,
        memory_bytes: limits.get("memory").map(|f| f.bytes()).transpose()?,
        processes: limits
            .get("processes")
            .map(|f| f.whole(1..=MAX_PROCESSES))
            .transpose()?,
    })
}

fn env(run: &Object<'_>, warnings: &mut Vec<String>) -> Result<BTreeMap<String, String>> {
    let mut env = BTreeMap::new();
    let Some(field) = run.get("env") else {
        return Ok(env);
    };
    for (key, value) in field.any_object()?.fields() {
        if matches!(value.value, super::tree::Value::Null) {
            return Err(value.invalid("it has no value; write '' for the empty text"));
        }
        let text = value.text()?;
        if looks_secret(key) {
            warnings.push(format!(
                "`{}` at line {} looks like a secret: it is kept readable on the ledger, for ever",
                value.path, value.line
            ));
        }
        env.insert(key.to_owned(), text.to_owned());
    }
    Ok(env)
}

/// Whether an environment variable's name suggests that its value should not be on record.
fn looks_secret(key: &str) -> bool {
    const WORDS: [&str; 8] = [
        "SECRET",
        "TOKEN",
        "PASSWORD",
        "PASSWD",
        "CREDENTIAL",
        "APIKEY",
        "PRIVATEKEY",
        "ACCESSKEY",
    ];
    let squeezed: String = key
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .collect::<String>()
        .to_ascii_uppercase();
    // Settings of tokenizers and token limits are common and no secrets.
    let harmless = squeezed.contains("TOKENIZER") || squeezed.contains("TOKENS");
    !harmless && WORDS.iter().any(|word| squeezed.contains(word))
}
