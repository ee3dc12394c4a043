//! Percent-encoding of paths in queries and lists: any bytes survive it.

/// Bytes as one query value: everything but letters, digits and `/-_.~` in percent form.
pub fn percent_encode(bytes: &[u8]) -> String {
    const HEX: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F'];
    let mut out = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(*byte)),
            _ => out.extend(['%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]),
        }
    }
    out
}

/// Undoes percent-encoding; a plus sign is itself. `None` for a `%` without two hex digits.
pub fn percent_decode(text: &str) -> Option<Vec<u8>> {
    let digit = |b: u8| char::from(b).to_digit(16).and_then(|d| u8::try_from(d).ok());
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let (high, low) = (digit(bytes.next()?)?, digit(bytes.next()?)?);
            out.push(high << 4 | low);
        } else {
            out.push(byte);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_path_of_any_characters_is_one_query_value() {
        assert_eq!(percent_encode(b"/tmp/a b&c=d+e%#?.txt"), "/tmp/a%20b%26c%3Dd%2Be%25%23%3F.txt");
        assert_eq!(percent_encode("/é\n".as_bytes()), "/%C3%A9%0A");
    }

    #[test]
    fn only_whole_escapes_are_decoded() {
        assert_eq!(percent_decode("a%20b+c%FF"), Some(b"a b+c\xff".to_vec()));
        assert_eq!(percent_decode("%2"), None);
        assert_eq!(percent_decode("%zz"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_survive(bytes: Vec<u8>) {
            prop_assert_eq!(percent_decode(&percent_encode(&bytes)), Some(bytes));
        }
    }
}
