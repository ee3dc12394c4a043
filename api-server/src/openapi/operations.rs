//! The table of operations. A test holds it to the router.

mod parameters;

use parameters::{
    BETA, CONDITIONS, CURSORS, DELETED_PREFIX, DISPOSITION, INVALID, KEY, LIFECYCLE, LIMIT, MISSING, MODEL, PAGE, PATH,
    PREFIX, RANGES, RUN, SCOPE, SENT, SESSION, STORE, VERSION, session_upload, upload,
};
use serde_json::{Value, json};
use wire::Surface;

/// One method of one path.
pub struct Operation {
    /// In capitals.
    pub method: &'static str,
    /// As it is described.
    pub path: &'static str,
    /// Its name in generated clients.
    pub id: &'static str,
    /// What it does.
    pub summary: &'static str,
    /// What the path's parameters name.
    pub named: &'static str,
    /// Groups of parameters, but for those of the path.
    pub parameters: &'static [&'static [Parameter]],
    /// What is sent.
    pub body: Option<Body>,
    /// What comes of it.
    pub answers: &'static [(u16, Answer)],
    /// Groups of statuses of errors, but for those that every operation has.
    pub errors: &'static [&'static [u16]],
}

/// A parameter of the query or a header.
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// `query` or `header`
    pub place: &'static str,
    /// Whether it has to be there.
    pub required: bool,
    /// What it may be.
    pub schema: fn() -> Value,
    /// What it means.
    pub text: &'static str,
}

/// What is sent.
pub enum Body {
    /// JSON of this schema.
    Json(&'static str),
    /// A form.
    Form(fn() -> Value),
    /// The content of a file.
    Bytes,
}

/// What comes of a request.
pub enum Answer {
    /// JSON of this schema.
    Json(&'static str),
    /// A message, or its events.
    Message,
    /// A verdict: of the schema, or an error.
    Refused,
    /// The content of a file.
    Content,
    /// The content of a file is what the client has.
    NotModified,
    /// Metadata in headers.
    InHeaders,
    /// A file's metadata with its tag.
    Tagged(&'static str),
    /// A word.
    Word,
    /// This description.
    Description,
}

const CONTENT_HEADERS: &[(&str, &str)] = &[
    ("etag", "Tag of the content."),
    ("content-disposition", "The name to save it under."),
    ("accept-ranges", "`bytes`"),
    ("content-range", "Which part it is, of an answer with a part."),
];
const TAG: &[(&str, &str)] = &[("etag", "MD5 of the content, in quotes.")];
const METADATA_HEADERS: &[(&str, &str)] = &[
    ("x-file-id", "Its id."),
    ("x-file-filename", "Its name, percent-encoded."),
    ("x-file-mime-type", "Its media type."),
    ("x-file-size", "Its length in bytes."),
    ("x-file-namespace", "`session`"),
    ("x-file-created-at", "When it was last written."),
    ("x-file-etag", "MD5 of its content."),
    ("etag", "The same, in quotes."),
];

impl Answer {
    /// In words.
    pub fn text(&self) -> &'static str {
        match self {
            Self::Json(_) | Self::Tagged(_) => "What was asked for.",
            Self::Message => "The message, or with `stream` its events.",
            Self::Refused => "The request would not be taken, or is no request at all.",
            Self::Content => "The content, or the part that was asked for.",
            Self::NotModified => "The client has it already.",
            Self::InHeaders => "The file exists; its metadata is in the headers.",
            Self::Word => "A word.",
            Self::Description => "This description.",
        }
    }

    /// Headers but for those of every answer.
    pub fn headers(&self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Content | Self::NotModified => CONTENT_HEADERS,
            Self::Tagged(_) => TAG,
            Self::InHeaders => METADATA_HEADERS,
            Self::Json(_) | Self::Message | Self::Refused | Self::Word | Self::Description => &[],
        }
    }

    /// Bodies by their types; `None`: there is none.
    pub fn content(&self, surface: Surface) -> Option<Value> {
        let of = |name: &str| super::reference("schemas", name);
        let error = of(match surface {
            Surface::Anthropic => "Error",
            Surface::Zylon => "ZylonError",
        });
        Some(match self {
            Self::Json(name) | Self::Tagged(name) => json!({ "application/json": { "schema": of(name) } }),
            Self::Message => json!({
                "application/json": { "schema": of("Message") },
                "text/event-stream": { "schema": of("StreamEvent") },
            }),
            Self::Refused => json!({ "application/json": { "schema": { "oneOf": [of("Validation"), error] } } }),
            Self::Content => json!({ "*/*": { "schema": { "type": "string", "format": "binary" } } }),
            Self::Word => json!({ "text/plain": { "schema": { "type": "string" } } }),
            Self::Description => json!({ "application/json": { "schema": { "type": "object" } } }),
            Self::NotModified | Self::InHeaders => return None,
        })
    }
}

const MODEL_NAME: &str = "A model's name, an alias, or `default`; it may hold slashes.";
const FILE: &str = "The file's id.";
const CONTAINER_FILE: &str = "The file's id: its path in the sandbox in base64url, without padding.";
const CONTAINER_KEY: &str =
    "The file's key, relative to the uploads, or to the outputs where it begins with `outputs/`; it may hold slashes.";
const THREAD: &str = "The thread, or the file's key in it; a key may hold slashes.";

const fn operation(method: &'static str, path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    Operation { method, path, id, summary, named: "", parameters: &[], body: None, answers: &[], errors: &[] }
}

const fn get(path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    operation("GET", path, id, summary)
}

const fn head(path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    operation("HEAD", path, id, summary)
}

const fn post(path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    operation("POST", path, id, summary)
}

const fn put(path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    operation("PUT", path, id, summary)
}

const fn delete(path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    operation("DELETE", path, id, summary)
}

impl Operation {
    const fn named(self, named: &'static str) -> Self {
        Self { named, ..self }
    }

    const fn with(self, parameters: &'static [&'static [Parameter]]) -> Self {
        Self { parameters, ..self }
    }

    const fn body(self, body: Body) -> Self {
        Self { body: Some(body), ..self }
    }

    const fn answers(self, answers: &'static [(u16, Answer)]) -> Self {
        Self { answers, ..self }
    }

    const fn fails(self, errors: &'static [&'static [u16]]) -> Self {
        Self { errors, ..self }
    }
}

/// Every operation.
pub const ALL: &[Operation] = &[
    post("/v1/messages", "createMessage", "Asks a model, and runs its code.")
        .with(&[VERSION, BETA])
        .body(Body::Json("MessagesRequest"))
        .answers(&[(200, Answer::Message)])
        .fails(&[INVALID, MODEL, RUN]),
    post("/v1/messages/count_tokens", "countTokens", "Counts the tokens of a prompt.")
        .with(&[VERSION, BETA])
        .body(Body::Json("CountTokensRequest"))
        .answers(&[(200, Answer::Json("TokenCount"))])
        .fails(&[INVALID, MODEL]),
    get("/v1/models", "listModels", "Lists the models.")
        .with(&[LIMIT, CURSORS, LIFECYCLE])
        .answers(&[(200, Answer::Json("ModelList"))])
        .fails(&[INVALID]),
    get("/v1/models/{id}", "getModel", "Shows a model.")
        .named(MODEL_NAME)
        .answers(&[(200, Answer::Json("Model"))])
        .fails(&[MISSING]),
    post("/v1/files", "uploadFile", "Stores a file.")
        .with(&[VERSION])
        .body(Body::Form(upload))
        .answers(&[(200, Answer::Json("FileMetadata"))])
        .fails(&[INVALID, SENT, STORE]),
    get("/v1/files", "listFiles", "Lists the workspace's files, newest first.")
        .with(&[VERSION, LIMIT, CURSORS, PAGE])
        .answers(&[(200, Answer::Json("FileList"))])
        .fails(&[INVALID, STORE]),
    get("/v1/files/{id}", "getFile", "Shows a file's metadata.")
        .named(FILE)
        .with(&[VERSION])
        .answers(&[(200, Answer::Json("FileMetadata"))])
        .fails(&[INVALID, MISSING, STORE]),
    delete("/v1/files/{id}", "deleteFile", "Deletes a file; its copies in containers stay.")
        .named(FILE)
        .with(&[VERSION])
        .answers(&[(200, Answer::Json("DeletedFile"))])
        .fails(&[INVALID, MISSING, STORE]),
    get("/v1/files/{id}/content", "downloadFile", "Fetches the content of a file that a tool made.")
        .named(FILE)
        .with(&[VERSION, DISPOSITION])
        .answers(&[(200, Answer::Content), (206, Answer::Content), (304, Answer::NotModified)])
        .fails(&[INVALID, MISSING, CONDITIONS, RANGES, STORE]),
    post("/api/gpt/v1/messages", "zylonCreateMessage", "Asks a model, and runs its code.")
        .with(&[BETA])
        .body(Body::Json("ZylonMessagesRequest"))
        .answers(&[(200, Answer::Message)])
        .fails(&[INVALID, MODEL, RUN]),
    post("/api/gpt/v1/messages/count_tokens", "zylonCountTokens", "Counts the tokens of a prompt.")
        .with(&[BETA])
        .body(Body::Json("ZylonMessagesRequest"))
        .answers(&[(200, Answer::Json("TokenCount"))])
        .fails(&[INVALID, MODEL]),
    post("/api/gpt/v1/messages/validate", "zylonValidateMessage", "Tells whether a request would be taken.")
        .body(Body::Json("ZylonMessagesRequest"))
        .answers(&[(200, Answer::Json("Validation")), (400, Answer::Refused)])
        .fails(&[&[413], STORE]),
    get("/api/gpt/v1/models", "zylonListModels", "Lists the models.")
        .with(&[LIMIT, CURSORS, LIFECYCLE])
        .answers(&[(200, Answer::Json("ModelList"))])
        .fails(&[INVALID]),
    get("/api/gpt/v1/models/{id}", "zylonGetModel", "Shows a model.")
        .named(MODEL_NAME)
        .answers(&[(200, Answer::Json("Model"))])
        .fails(&[MISSING]),
    post("/api/gpt/v1/files", "zylonUploadFile", "Writes a file into a container.")
        .with(&[SCOPE, KEY])
        .body(Body::Form(session_upload))
        .answers(&[(200, Answer::Tagged("SessionFile"))])
        .fails(&[INVALID, SENT, SESSION, CONDITIONS]),
    get("/api/gpt/v1/files", "zylonListFiles", "Lists a container's uploads and outputs, oldest first.")
        .with(&[SCOPE, LIMIT, CURSORS, PREFIX])
        .answers(&[(200, Answer::Json("SessionFileList"))])
        .fails(&[INVALID, SESSION]),
    delete("/api/gpt/v1/files", "zylonDeleteFiles", "Deletes the files whose keys begin alike.")
        .with(&[SCOPE, DELETED_PREFIX])
        .answers(&[(200, Answer::Json("DeletedPrefix"))])
        .fails(&[INVALID, SESSION]),
    get("/api/gpt/v1/files/{id}", "zylonGetFile", "Shows a file's metadata.")
        .named(CONTAINER_FILE)
        .with(&[SCOPE])
        .answers(&[(200, Answer::Tagged("SessionFile"))])
        .fails(&[INVALID, SESSION]),
    head("/api/gpt/v1/files/{id}", "zylonHasFile", "Tells whether a file exists.")
        .named(CONTAINER_FILE)
        .with(&[SCOPE])
        .answers(&[(200, Answer::InHeaders)])
        .fails(&[INVALID, SESSION]),
    put("/api/gpt/v1/files/{id}", "zylonPutFile", "Writes a file into a container, by its key.")
        .named(CONTAINER_KEY)
        .with(&[SCOPE])
        .body(Body::Bytes)
        .answers(&[(200, Answer::Tagged("SessionFile"))])
        .fails(&[INVALID, SENT, SESSION, CONDITIONS]),
    delete("/api/gpt/v1/files/{id}", "zylonDeleteFile", "Deletes a file.")
        .named(CONTAINER_FILE)
        .with(&[SCOPE])
        .answers(&[(200, Answer::Json("DeletedFile"))])
        .fails(&[INVALID, SESSION]),
    get("/api/gpt/v1/files/{id}/content", "zylonDownloadFile", "Fetches a file's content.")
        .named(CONTAINER_FILE)
        .with(&[SCOPE, DISPOSITION])
        .answers(&[(200, Answer::Content), (206, Answer::Content), (304, Answer::NotModified)])
        .fails(&[INVALID, SESSION, CONDITIONS, RANGES]),
    post("/api/v1/app/thread/{thread}/upload-file", "threadUploadFile", "Writes a file into a thread's container.")
        .named(THREAD)
        .with(&[KEY])
        .body(Body::Form(session_upload))
        .answers(&[(200, Answer::Tagged("SessionFile"))])
        .fails(&[INVALID, SENT, SESSION, CONDITIONS]),
    put(
        "/api/v1/app/thread/{thread}/put-file/{key}",
        "threadPutFile",
        "Writes a file into a thread's container, by its key.",
    )
    .named(THREAD)
    .body(Body::Bytes)
    .answers(&[(200, Answer::Tagged("SessionFile"))])
    .fails(&[INVALID, SENT, SESSION, CONDITIONS]),
    get("/api/v1/app/thread/{thread}/download-file", "threadDownloadFile", "Fetches a file of a thread's container.")
        .named(THREAD)
        .with(&[PATH, DISPOSITION])
        .answers(&[(200, Answer::Content), (206, Answer::Content), (304, Answer::NotModified)])
        .fails(&[INVALID, SESSION, CONDITIONS, RANGES]),
    get("/healthz", "isAlive", "Tells that the process answers.").answers(&[(200, Answer::Word)]),
    get("/readyz", "isReady", "Tells whether the server can work.")
        .answers(&[(200, Answer::Word), (503, Answer::Word)]),
    get("/openapi.json", "getDescription", "Shows this description.").answers(&[(200, Answer::Description)]),
];
