//! What an instance's process sees: its environment and its command line.
//!
//! The environment is made, not inherited: of the agent's own only `PATH`, `HOME` and `LANG` pass, so that neither its
//! token nor its configuration reaches a tenant's code. Names the platform sets win over names the workload sets.
//! Accelerators that were not given are hidden: an empty list means none to the vendors' runtimes, a missing one all.

use std::{collections::BTreeMap, path::Path};

use tidemill_protocol::agent::DesiredInstance;

use crate::shim::wire;

/// Variables of the agent's own environment that instances get.
const INHERITED: [&str; 3] = ["PATH", "HOME", "LANG"];

/// Where nothing was inherited, commands are looked for here.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Command word that stands for the binary the agent runs from.
const OWN_NAME: &str = "tidemill";

/// The environment of an instance. `inherited` looks names up in the agent's own.
pub(crate) fn environment(
    plan: &DesiredInstance,
    port: u16,
    dir: &Path,
    inherited: impl Fn(&str) -> Option<String>,
) -> BTreeMap<String, String> {
    let mut env: BTreeMap<String, String> = INHERITED
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), inherited(name)?)))
        .collect();
    env.entry("PATH".to_owned()).or_insert_with(|| DEFAULT_PATH.to_owned());
    env.extend(plan.run.env.clone());
    let uuids = |kind: Option<&str>| {
        plan.devices
            .iter()
            .filter(|device| kind.is_none_or(|kind| device.kind == kind))
            .map(|device| device.uuid.as_str())
            .collect::<Vec<_>>()
            .join(",")
    };
    let mut set = |name: &str, value: String| env.insert(name.to_owned(), value);
    set("PORT", port.to_string());
    set("TIDEMILL_INSTANCE", plan.instance.clone());
    set("TIDEMILL_WORKLOAD", plan.workload.clone());
    set("TIDEMILL_DEVICES", uuids(None));
    set("CUDA_VISIBLE_DEVICES", uuids(Some("cuda")));
    set("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned());
    set("ROCR_VISIBLE_DEVICES", uuids(Some("rocm")));
    set("TIDEMILL_NOTICE", dir.join(wire::NOTICE).display().to_string());
    if let Some(fence) = plan.fence {
        set("TIDEMILL_FENCE", fence.to_string());
    }
    env
}

/// The command with `$NAME` and `${NAME}` replaced for `PORT` and the `TIDEMILL_…` names; other `$` stay as they are.
/// The word `tidemill` in front becomes `own_program`.
pub(crate) fn command(words: &[String], env: &BTreeMap<String, String>, own_program: &Path) -> Vec<String> {
    let mut words = substituted(words, env);
    if let Some(program) = words.first_mut()
        && program == OWN_NAME
    {
        *program = own_program.display().to_string();
    }
    words
}

/// The words with names replaced, for a command that is not of this machine.
pub(crate) fn substituted(words: &[String], env: &BTreeMap<String, String>) -> Vec<String> {
    words.iter().map(|word| substitute(word, env)).collect()
}

fn substitute(word: &str, env: &BTreeMap<String, String>) -> String {
    let mut text = String::with_capacity(word.len());
    let mut rest = word;
    while let Some(at) = rest.find('$') {
        text.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let (name, end) = match after.strip_prefix('{') {
            Some(inner) => match inner.find('}') {
                Some(close) => (&inner[..close], close + 2),
                None => ("", 0),
            },
            None => {
                let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let end = after.find(|c| !is_name(c)).unwrap_or(after.len());
                (&after[..end], end)
            }
        };
        let ours = name == "PORT" || name.starts_with("TIDEMILL_");
        match env.get(name).filter(|_| ours) {
            Some(value) => {
                text.push_str(value);
                rest = &after[end..];
            }
            None => {
                text.push('$');
                rest = after;
            }
        }
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use tidemill_protocol::agent::{DesiredDevice, RunSpec, Want};

    use super::*;

    fn plan() -> DesiredInstance {
        let device = |uuid: &str, kind: &str| DesiredDevice {
            uuid: uuid.into(),
            milli: 1000,
            kind: kind.into(),
        };
        DesiredInstance {
            instance: "inst-1".into(),
            want: Want::Run,
            run: RunSpec {
                env: BTreeMap::from([("MODEL".into(), "small".into()), ("PORT".into(), "1".into())]),
                ..RunSpec::default()
            },
            workload: "acme/chat".into(),
            devices: vec![device("GPU-a", "cuda"), device("CPU-b", "cpu")],
            fence: Some(7),
            traceparent: None,
        }
    }

    #[test]
    fn the_environment_is_made_not_inherited() {
        let agents = |name: &str| match name {
            "PATH" => Some("/bin".to_owned()),
            "TIDEMILL_TOKEN" => Some("secret".to_owned()),
            _ => None,
        };
        let env = environment(&plan(), 4242, Path::new("/d/inst-1"), agents);
        let expected = [
            ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
            ("CUDA_VISIBLE_DEVICES", "GPU-a"),
            ("MODEL", "small"),
            ("PATH", "/bin"),
            ("PORT", "4242"),
            ("ROCR_VISIBLE_DEVICES", ""),
            ("TIDEMILL_DEVICES", "GPU-a,CPU-b"),
            ("TIDEMILL_FENCE", "7"),
            ("TIDEMILL_INSTANCE", "inst-1"),
            ("TIDEMILL_NOTICE", "/d/inst-1/notice.json"),
            ("TIDEMILL_WORKLOAD", "acme/chat"),
        ];
        let expected: BTreeMap<String, String> = expected
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        assert_eq!(env, expected);
    }

    #[test]
    fn names_are_replaced_in_the_command() {
        let env = environment(&plan(), 80, Path::new("/d"), |_| None);
        let replace = |word: &str| substitute(word, &env);
        assert_eq!(replace("$PORT"), "80");
        assert_eq!(replace("--listen=0.0.0.0:${PORT}/x"), "--listen=0.0.0.0:80/x");
        assert_eq!(replace("$TIDEMILL_INSTANCE.$PORT$"), "inst-1.80$");
        assert_eq!(
            replace("$HOME ${MODEL} ${PORT $PORTX $"),
            "$HOME ${MODEL} ${PORT $PORTX $"
        );
        let words = ["tidemill".to_owned(), "tidemill".to_owned()];
        assert_eq!(command(&words, &env, Path::new("/opt/t")), ["/opt/t", "tidemill"]);
    }
}
