//! Token texts.

use tidemill_domain::id::CommandId;

/// Longest text looked at.
pub(super) const MAX_TEXT: usize = 256;

const PREFIX: &str = "tm_";
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// A token's text: `tm_` and 43 characters of base64url, 256 bits. Shown once; `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenText(String);

/// What this process derives token texts from.
#[derive(Clone)]
pub(crate) struct TokenSource([u8; 32]);

impl TokenSource {
    /// Seeded from the operating system's randomness, by way of UUIDs: each brings at least 32 fresh bits (RFC 9562
    /// §5.7; the rest is a clock and a counter), so sixteen bring twice what is kept.
    pub(crate) fn random() -> Self {
        let mut hasher = blake3::Hasher::new();
        for _ in 0..16 {
            hasher.update(uuid::Uuid::now_v7().as_bytes());
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// The text for a command. The same command asked again of this process is shown the same text, which is what makes
    /// a lost answer repeatable although only the hash is kept.
    pub(crate) fn text_for(&self, command: CommandId) -> TokenText {
        let secret = blake3::keyed_hash(&self.0, &command.0);
        TokenText(format!("{PREFIX}{}", base64url(secret.as_bytes())))
    }
}

impl TokenText {
    /// The text itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What the ledger keeps.
    pub fn hash(&self) -> [u8; 32] {
        hash(&self.0)
    }
}

impl std::fmt::Debug for TokenText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenText(…)")
    }
}

/// BLAKE3 of a token's text.
pub fn hash(text: &str) -> [u8; 32] {
    *blake3::hash(text.as_bytes()).as_bytes()
}

/// RFC 4648 §5, without padding.
fn base64url(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().fold(0u32, |group, byte| group << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..=chunk.len() {
            out.push(char::from(ALPHABET[(group >> (18 - 6 * place)) as usize & 63]));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64url_is_rfc_4648() {
        let cases: [(&[u8], &str); 5] = [
            (b"", ""),
            (b"f", "Zg"),
            (b"fo", "Zm8"),
            (b"foo", "Zm9v"),
            (b"\xfb\xff", "-_8"),
        ];
        for (bytes, text) in cases {
            assert_eq!(base64url(bytes), text);
        }
    }

    #[test]
    fn a_command_has_one_text_in_one_process() {
        let (here, there) = (TokenSource::random(), TokenSource::random());
        let command = CommandId([7; 16]);
        let text = here.text_for(command);
        assert_eq!(text, here.text_for(command));
        assert_ne!(text, there.text_for(command));
        assert_ne!(text, here.text_for(CommandId([8; 16])));
        assert_eq!((text.reveal().len(), &text.reveal()[..3]), (46, "tm_"));
        assert!(!format!("{text:?}").contains(text.reveal()));
    }
}
