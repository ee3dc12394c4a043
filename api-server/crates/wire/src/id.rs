//! Identifiers that clients see: a prefix and 26 characters of Crockford base 32, the first ten of which are the time.

/// Time and randomness for one id, passed in by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdSeed {
    /// Milliseconds since the Unix epoch; 48 bits are kept.
    pub millis: u64,
    /// 80 random bits.
    pub random: [u8; 10],
}

const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
const BODY_LENGTH: usize = 26;
const TIME_LENGTH: usize = 10;

/// Ids of other servers may be longer than ours; what is named after them still has to be a container id.
const MAX_BODY: usize = 100;
/// And so does what code calls.
const MAX_CALLING_BODY: usize = 64;

const SERVER_TOOL: &str = "srvtoolu_";
const CONTAINER: &str = "container_";

impl IdSeed {
    fn body(self) -> String {
        let random = self.random.iter().fold(0u128, |bits, byte| (bits << 8) | u128::from(*byte));
        let bits = (u128::from(self.millis & 0xFFFF_FFFF_FFFF) << 80) | random;
        (0..BODY_LENGTH)
            .rev()
            .map(|place| {
                let index = ((bits >> (5 * place)) & 31) as usize;
                char::from(ALPHABET[index])
            })
            .collect()
    }

    /// `msg_...`
    pub fn message(self) -> String {
        format!("msg_{}", self.body())
    }

    /// `srvtoolu_...`: letters and digits only, since clients test for that.
    pub fn server_tool_use(self) -> String {
        format!("{SERVER_TOOL}{}", self.body())
    }

    /// `container_...`, for a call whose id names none.
    pub fn container(self) -> String {
        format!("{CONTAINER}{}", self.body())
    }

    /// `toolu_...`
    pub fn tool_use(self) -> String {
        format!("toolu_{}", self.body())
    }

    /// `req_...`
    pub fn request(self) -> String {
        format!("req_{}", self.body())
    }
}

/// Whether the id has the form that only this server gives to calls that it runs itself.
pub fn is_server_tool_use(id: &str) -> bool {
    id.starts_with(SERVER_TOOL)
}

/// The id of a client's call that code made: of the code's own call, and its number there. The same call always has the same id.
pub fn call_from_code(server_tool_use_id: &str, number: u32) -> String {
    let body = server_tool_use_id.strip_prefix(SERVER_TOOL).unwrap_or(server_tool_use_id);
    // Ids of other servers may be longer than ours, and this one has to be a legal one too.
    let start = body.char_indices().rev().nth(MAX_CALLING_BODY - 1).map_or(0, |(start, _)| start);
    format!("toolu_{}_{number}", &body[start..])
}

/// The fresh container of a turn whose first server call has this id; the same call always gives the same container.
pub fn container_of_call(server_tool_use_id: &str) -> Option<String> {
    let body = server_tool_use_id.strip_prefix(SERVER_TOOL)?;
    let part_of_id = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let legal = !body.is_empty() && body.len() <= MAX_BODY && body.bytes().all(part_of_id);
    legal.then(|| format!("{CONTAINER}{body}"))
}

/// When the container with this id was named, in milliseconds since the epoch; `None` for an id that this server did not make.
/// An absent container older than its lifetime has expired, a younger or foreign one is unknown.
pub fn container_made_at(container_id: &str) -> Option<u64> {
    let body = container_id.strip_prefix(CONTAINER)?;
    if body.len() != BODY_LENGTH {
        return None;
    }
    let mut bits = 0u128;
    for (place, byte) in body.bytes().enumerate() {
        let value = ALPHABET.iter().position(|letter| *letter == byte)?;
        // 26 characters hold 130 bits: the first may only use three.
        if place == 0 && value > 7 {
            return None;
        }
        bits = (bits << 5) | value as u128;
    }
    debug_assert_eq!(body.len() - TIME_LENGTH, 16, "16 characters are the 80 random bits");
    u64::try_from(bits >> 80).ok()
}

/// What [`is_container`] asks of an id that a client chooses, for error texts.
pub const CONTAINER_RULE: &str =
    "an id has 1 to 128 characters of `A-Z`, `a-z`, `0-9`, `.`, `_` and `-`, and is not dots only";

/// Whether a client may call a container so.
pub fn is_container(id: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=128).contains(&id.len()) && id.bytes().all(legal) && !id.bytes().all(|byte| byte == b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: IdSeed = IdSeed { millis: 1_795_953_600_123, random: [0xFF, 0, 1, 2, 3, 4, 5, 6, 7, 0xFF] };

    #[test]
    fn ids_are_alphanumeric_after_their_prefix_and_sort_by_time() {
        for (id, prefix) in [
            (SEED.message(), "msg_"),
            (SEED.server_tool_use(), "srvtoolu_"),
            (SEED.tool_use(), "toolu_"),
            (SEED.request(), "req_"),
        ] {
            let body = id.strip_prefix(prefix).unwrap();
            assert_eq!(body.len(), 26);
            assert!(body.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
        }
        let later = IdSeed { millis: SEED.millis + 1, random: [0; 10] };
        assert!(later.message() > SEED.message());
    }

    #[test]
    fn a_container_is_named_after_its_call_and_tells_its_age() {
        let container = container_of_call(&SEED.server_tool_use()).unwrap();
        assert!(container.starts_with("container_"));
        assert_eq!(container_made_at(&container), Some(SEED.millis));
        let highest = IdSeed { millis: 0xFFFF_FFFF_FFFF, random: [0xFF; 10] };
        let container = container_of_call(&highest.server_tool_use()).unwrap();
        assert_eq!(container_made_at(&container), Some(0xFFFF_FFFF_FFFF));
    }

    #[test]
    fn a_call_from_code_is_named_after_the_codes_call() {
        assert_eq!(call_from_code("srvtoolu_01Demo", 0), "toolu_01Demo_0");
        let long = call_from_code(&format!("srvtoolu_{}x", "é".repeat(100)), 1_023);
        assert!(long.ends_with("x_1023") && long.chars().count() == 6 + 64 + 5, "{long}");
    }

    #[test]
    fn ids_of_others_have_no_age() {
        for id in [
            "",
            "container_",
            "container_01Demo",
            "sales",
            "container_ZZZZZZZZZZZZZZZZZZZZZZZZZZ",
            "container_01ARZ3NDEKTSV4RRFFQ69G5FAu",
        ] {
            assert_eq!(container_made_at(id), None, "{id}");
        }
        assert_eq!(container_of_call("toolu_01"), None);
        assert_eq!(container_of_call("srvtoolu_../x"), None);
        assert_eq!(container_of_call("srvtoolu_01Demo").as_deref(), Some("container_01Demo"));
    }
}
