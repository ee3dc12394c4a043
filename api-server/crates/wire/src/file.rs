//! Files API objects.

use jiff::Timestamp;
use serde::Serialize;

/// A file as clients see it. The Zylon keys are left out where they are `None`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileMetadata {
    /// `file_...`, or on the Zylon surface base64url of the sandbox path.
    pub id: String,
    /// Always `file`.
    #[serde(rename = "type")]
    pub kind: FileType,
    /// Name without folders.
    pub filename: String,
    /// Media type.
    pub mime_type: String,
    /// Length in bytes.
    pub size_bytes: u64,
    /// When it was stored.
    pub created_at: Timestamp,
    /// Whether its content may be fetched.
    pub downloadable: bool,
    /// When it will be deleted by itself.
    pub expires_at: Option<Timestamp>,
    /// The container that holds it.
    pub scope: Option<FileScope>,
    /// MD5 of the content, only on the Zylon surface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// `session`, only on the Zylon surface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// The constant `type` of [`FileMetadata`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileType {
    /// `file`
    #[default]
    File,
}

/// `scope` of a file that lives in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileScope {
    /// The container's id.
    pub id: String,
    /// Always `session`.
    #[serde(rename = "type")]
    pub kind: FileScopeType,
}

/// The constant `type` of [`FileScope`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileScopeType {
    /// `session`: the word of the contract for a container's life.
    #[default]
    Session,
}

/// Answer to a DELETE.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeletedFile {
    /// What was deleted.
    pub id: String,
    /// Always `file_deleted`.
    #[serde(rename = "type")]
    pub kind: DeletedFileType,
}

/// The constant `type` of [`DeletedFile`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeletedFileType {
    /// `file_deleted`
    #[default]
    FileDeleted,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_prints_as_the_contract_shows() {
        let file = FileMetadata {
            id: "file_01Sales".into(),
            kind: FileType::File,
            filename: "sales.csv".into(),
            mime_type: "text/csv".into(),
            size_bytes: 48_211,
            created_at: "2026-11-30T09:00:00Z".parse().unwrap(),
            downloadable: false,
            expires_at: None,
            scope: None,
            etag: None,
            namespace: None,
        };
        assert_eq!(
            serde_json::to_string(&file).unwrap(),
            r#"{"id":"file_01Sales","type":"file","filename":"sales.csv","mime_type":"text/csv","size_bytes":48211,"created_at":"2026-11-30T09:00:00Z","downloadable":false,"expires_at":null,"scope":null}"#
        );
        let gone = DeletedFile { id: "file_01Sales".into(), kind: DeletedFileType::FileDeleted };
        assert_eq!(serde_json::to_string(&gone).unwrap(), r#"{"id":"file_01Sales","type":"file_deleted"}"#);
    }
}
