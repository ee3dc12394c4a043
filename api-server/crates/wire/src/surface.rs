//! Which contract a request is held to.

/// The contract of the route that a request came by: it decides envelope, strictness, containers and files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Surface {
    /// `/v1/...`
    Anthropic,
    /// `/api/gpt/v1/...` and `/api/v1/app/thread/...`
    Zylon,
}

/// The generation that the `anthropic-version` header names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiVersion {
    /// `2023-06-01`, and every version older than the current one: sampling parameters are accepted.
    Previous,
    /// `2026-10-21`: sampling parameters are unknown fields.
    Current,
}

impl ApiVersion {
    /// Reads the header's value. Dates order as text, so that a version between two known ones behaves like the older.
    ///
    /// # Errors
    /// A value that is not `YYYY-MM-DD`.
    pub fn parse(header: &str) -> Result<Self, crate::ApiError> {
        let digits = |range: std::ops::Range<usize>| {
            header.get(range).is_some_and(|part| part.bytes().all(|byte| byte.is_ascii_digit()))
        };
        let dashes = header.as_bytes().get(4) == Some(&b'-') && header.as_bytes().get(7) == Some(&b'-');
        if header.len() == 10 && dashes && digits(0..4) && digits(5..7) && digits(8..10) {
            return Ok(if header < "2026-10-21" { Self::Previous } else { Self::Current });
        }
        Err(crate::ApiError::invalid("anthropic-version: the header must be a date such as 2026-10-21"))
    }
}

#[cfg(test)]
mod tests {
    use super::ApiVersion;

    #[test]
    fn versions_are_ordered_by_date() {
        assert_eq!(ApiVersion::parse("2023-06-01"), Ok(ApiVersion::Previous));
        assert_eq!(ApiVersion::parse("2026-10-21"), Ok(ApiVersion::Current));
        for wrong in ["", "latest", "2026-1-21", "2026-10-2x", "2026-10-211", "２０２６-10-21"] {
            assert!(ApiVersion::parse(wrong).is_err(), "{wrong}");
        }
    }
}
