//! Models known by name: kind, memory and speed as their vendors state them.
//!
//! A model that is not here is taken all the same: under its own name, with the memory it reports, at speed 1.

/// A model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Model {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    pub(super) memory_gib: u64,
}

const fn model(name: &'static str, kind: &'static str, memory_gib: u64) -> Model {
    Model { name, kind, memory_gib }
}

/// All of them. Several of one family differ in memory.
pub(super) const MODELS: [Model; 29] = [
    model("A100-40G", "cuda", 40),
    model("A100-80G", "cuda", 80),
    model("A10", "cuda", 24),
    model("A10G", "cuda", 24),
    model("A30", "cuda", 24),
    model("A40", "cuda", 48),
    model("B200", "cuda", 180),
    model("H100-80G", "cuda", 80),
    model("H20", "cuda", 96),
    model("H200-141G", "cuda", 141),
    model("H800", "cuda", 80),
    model("L4", "cuda", 24),
    model("L40S", "cuda", 48),
    model("P100", "cuda", 16),
    model("RTX-3090", "cuda", 24),
    model("RTX-4090", "cuda", 24),
    model("RTX-5090", "cuda", 32),
    model("T4", "cuda", 16),
    model("V100-16G", "cuda", 16),
    model("V100-32G", "cuda", 32),
    model("MI210", "rocm", 64),
    model("MI250", "rocm", 128),
    model("MI300X", "rocm", 192),
    model("MI325X", "rocm", 256),
    model("RX-7900-XTX", "rocm", 24),
    model("Ascend-310P", "ascend", 21),
    model("Ascend-910A", "ascend", 32),
    model("Ascend-910B", "ascend", 64),
    model("Ascend-910C", "ascend", 64),
];

/// AMD's device ids, for cards whose driver does not name them.
const AMD_IDS: [(u16, &str); 13] = [
    (0x66a1, "MI50"),
    (0x738c, "MI100"),
    (0x7408, "MI250X"),
    (0x740c, "MI250"),
    (0x740f, "MI210"),
    (0x744c, "RX-7900-XTX"),
    (0x74a0, "MI300A"),
    (0x74a1, "MI300X"),
    (0x74a2, "MI308X"),
    (0x74a5, "MI325X"),
    (0x74a9, "MI300X"),
    (0x75a0, "MI350X"),
    (0x75a3, "MI355X"),
];

/// Words of product names that say nothing about what a card can do.
const NOISE: [&str; 9] = [
    "NVIDIA", "Tesla", "GeForce", "Quadro", "AMD", "Radeon", "Instinct", "Graphics", "OAM",
];

/// AMD's name of a device id.
pub(super) fn amd(device_id: u16) -> Option<&'static str> {
    AMD_IDS.iter().find(|(id, _)| *id == device_id).map(|(_, name)| *name)
}

/// The name a product goes by here: that of the catalogue if its family and memory are there, else its own, made plain.
pub(super) fn canonical(kind: &str, product: &str, memory_bytes: u64) -> String {
    let words: Vec<&str> = product
        .split([' ', '_', '/', '('])
        .map(|word| word.trim_matches(|c: char| !c.is_ascii_alphanumeric()))
        .filter(|word| !word.is_empty() && !NOISE.iter().any(|noise| noise.eq_ignore_ascii_case(word)))
        .collect();
    let joined = words.join("-");
    let known = MODELS.iter().find(|model| {
        let family = family(model.name);
        let rest = match joined.get(..family.len()) {
            Some(start) if model.kind == kind && start.eq_ignore_ascii_case(family) => &joined[family.len()..],
            _ => return false,
        };
        // `A10` is not the beginning of `A100`, nor `RTX-4090` of `RTX-4090-D` or a laptop's.
        let same = rest.is_empty() || kind == "ascend" || (rest.starts_with('-') && rest[1..].split('-').all(is_form));
        same && near(memory_bytes, model.memory_gib)
    });
    match known {
        Some(model) => model.name.to_owned(),
        None => plain(&joined, kind),
    }
}

/// The family of a model's name: `A100` of `A100-80G`.
fn family(name: &str) -> &str {
    match name.rsplit_once('-') {
        Some((family, memory)) if memory.ends_with('G') && memory.as_bytes()[0].is_ascii_digit() => family,
        _ => name,
    }
}

/// Words behind a family's name that name a form or its memory: `SXM4`, `PCIe`, `80GB`, `HBM3`, `NVL`.
fn is_form(word: &str) -> bool {
    let starts = |prefix: &str| word.len() >= prefix.len() && word[..prefix.len()].eq_ignore_ascii_case(prefix);
    starts("SXM") || starts("PCI") || starts("HBM") || starts("NVL") || starts("PG5") || {
        let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) && word.to_ascii_uppercase().ends_with("GB")
    }
}

/// Drivers keep some of the memory for themselves, and count in either unit. Nothing is known of a device that does not
/// say how much it has.
fn near(bytes: u64, gib: u64) -> bool {
    let mib = bytes >> 20;
    let nominal = gib * 1024;
    bytes == 0 || (mib * 100 >= nominal * 85 && mib * 100 <= nominal * 105)
}

/// A product's own name within what names may hold.
fn plain(joined: &str, kind: &str) -> String {
    let name: String = joined
        .chars()
        .map(|c| match c {
            c if c.is_ascii_alphanumeric() || c == '-' || c == '.' => c,
            _ => '-',
        })
        .take(63)
        .collect();
    match name.trim_matches('-') {
        "" => format!("unknown-{kind}"),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_go_by_their_models_name() {
        const GIB: u64 = 1 << 30;
        for (kind, product, gib, expected) in [
            ("cuda", "NVIDIA A100-SXM4-80GB", 80, "A100-80G"),
            ("cuda", "NVIDIA A100-PCIE-40GB", 40, "A100-40G"),
            ("cuda", "NVIDIA A100 80GB PCIe", 80, "A100-80G"),
            ("cuda", "NVIDIA A10", 22, "A10"),
            ("cuda", "NVIDIA A10G", 22, "A10G"),
            ("cuda", "NVIDIA H100 80GB HBM3", 80, "H100-80G"),
            ("cuda", "NVIDIA H100 NVL", 94, "H100-NVL"),
            ("cuda", "NVIDIA H200", 140, "H200-141G"),
            ("cuda", "Tesla T4", 15, "T4"),
            ("cuda", "Tesla V100-SXM2-32GB", 32, "V100-32G"),
            ("cuda", "NVIDIA GeForce RTX 4090", 24, "RTX-4090"),
            ("cuda", "NVIDIA GeForce RTX 4090 Laptop GPU", 16, "RTX-4090-Laptop-GPU"),
            ("cuda", "NVIDIA GeForce RTX 4090 D", 24, "RTX-4090-D"),
            ("cuda", "NVIDIA RTX 6000 Ada Generation", 48, "RTX-6000-Ada-Generation"),
            ("cuda", "NVIDIA Z9 Übercard", 300, "Z9-bercard"),
            ("rocm", "AMD Instinct MI300X OAM", 192, "MI300X"),
            ("rocm", "", 4, "unknown-rocm"),
            ("ascend", "Ascend-910B3", 64, "Ascend-910B"),
            ("ascend", "Ascend-910B4", 32, "Ascend-910B4"),
        ] {
            assert_eq!(canonical(kind, product, gib * GIB), expected, "{product}");
        }
    }
}
