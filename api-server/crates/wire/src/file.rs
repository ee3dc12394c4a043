//! Files API objects.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

/// A file of a workspace as clients see it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct FileMetadata {
    /// `file_...`
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
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub created_at: Timestamp,
    /// Whether its content may be fetched.
    pub downloadable: bool,
    /// When it will be deleted by itself.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub expires_at: Option<Timestamp>,
    /// The session that holds it; files of a workspace have none.
    pub scope: Option<FileScope>,
}

/// A page of a workspace's files, newest first, with the cursors of both generations of clients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct FileList {
    /// The files. Never empty while there are more.
    pub data: Vec<FileMetadata>,
    /// `page_...`, the `page` of the next request; absent on the last page, and with `before_id`.
    pub next_page: Option<String>,
    /// Whether there are more, in the direction that was asked for.
    pub has_more: bool,
    /// Id of the first file.
    pub first_id: Option<String>,
    /// Id of the last file.
    pub last_id: Option<String>,
}

/// A file in a container, as clients of the Zylon surface see it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct SessionFile {
    /// base64url of the path in the sandbox, without padding.
    pub id: String,
    /// When it was last written.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub created_at: Timestamp,
    /// Name without folders; bytes that are no UTF-8 are replaced.
    pub filename: String,
    /// Media type, by the name.
    pub mime_type: String,
    /// Length in bytes.
    pub size_bytes: u64,
    /// Always `file`.
    #[serde(rename = "type")]
    pub kind: FileType,
    /// False for what was uploaded, true for what code may have made.
    pub downloadable: bool,
    /// MD5 of the content, in lower-case hex; `None` in lists.
    pub etag: Option<String>,
    /// Always `session`.
    pub namespace: FileScopeType,
    /// The container that holds it.
    pub scope: FileScope,
}

/// A page of a container's files, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct SessionFileList {
    /// The files.
    pub data: Vec<SessionFile>,
    /// Id of the first file.
    pub first_id: Option<String>,
    /// Id of the last file.
    pub last_id: Option<String>,
    /// Whether there are more, in the direction that was asked for.
    pub has_more: bool,
}

/// Answer to a DELETE of all files whose keys begin alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DeletedPrefix {
    /// The prefix, as it was given.
    pub prefix: String,
    /// How many files were deleted.
    pub deleted_count: u64,
    /// Always `prefix_deleted`.
    #[serde(rename = "type")]
    pub kind: DeletedPrefixType,
}

/// The constant `type` of [`DeletedPrefix`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum DeletedPrefixType {
    /// `prefix_deleted`
    #[default]
    PrefixDeleted,
}

/// The constant `type` of [`FileMetadata`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum FileType {
    /// `file`
    #[default]
    File,
}

/// `scope` of a file that lives in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FileScope {
    /// The container's id.
    pub id: String,
    /// Always `session`.
    #[serde(rename = "type")]
    pub kind: FileScopeType,
}

/// The constant `type` of [`FileScope`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum FileScopeType {
    /// `session`: the word of the contract for a container's life.
    #[default]
    Session,
}

/// Answer to a DELETE.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DeletedFile {
    /// What was deleted.
    pub id: String,
    /// Always `file_deleted`.
    #[serde(rename = "type")]
    pub kind: DeletedFileType,
}

/// The constant `type` of [`DeletedFile`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
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
        };
        assert_eq!(
            serde_json::to_string(&file).unwrap(),
            r#"{"id":"file_01Sales","type":"file","filename":"sales.csv","mime_type":"text/csv","size_bytes":48211,"created_at":"2026-11-30T09:00:00Z","downloadable":false,"expires_at":null,"scope":null}"#
        );
        let session = SessionFile {
            id: "L21udC91c2VyLWRhdGEvdXBsb2Fkcy9zYWxlcy5jc3Y".into(),
            created_at: "2026-10-08T10:30:00Z".parse().unwrap(),
            filename: "sales.csv".into(),
            mime_type: "text/csv".into(),
            size_bytes: 4096,
            kind: FileType::File,
            downloadable: false,
            etag: Some("d41d8cd98f00b204e9800998ecf8427e".into()),
            namespace: FileScopeType::Session,
            scope: FileScope { id: "my-container".into(), kind: FileScopeType::Session },
        };
        assert_eq!(
            serde_json::to_string(&session).unwrap(),
            r#"{"id":"L21udC91c2VyLWRhdGEvdXBsb2Fkcy9zYWxlcy5jc3Y","created_at":"2026-10-08T10:30:00Z","filename":"sales.csv","mime_type":"text/csv","size_bytes":4096,"type":"file","downloadable":false,"etag":"d41d8cd98f00b204e9800998ecf8427e","namespace":"session","scope":{"id":"my-container","type":"session"}}"#
        );
        let cleared =
            DeletedPrefix { prefix: "data/2026/".into(), deleted_count: 3, kind: DeletedPrefixType::PrefixDeleted };
        assert_eq!(
            serde_json::to_string(&cleared).unwrap(),
            r#"{"prefix":"data/2026/","deleted_count":3,"type":"prefix_deleted"}"#
        );
        let gone = DeletedFile { id: "file_01Sales".into(), kind: DeletedFileType::FileDeleted };
        assert_eq!(serde_json::to_string(&gone).unwrap(), r#"{"id":"file_01Sales","type":"file_deleted"}"#);
    }
}
