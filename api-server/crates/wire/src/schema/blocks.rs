//! Content blocks of requests.

use schemars::JsonSchema;
use serde_json::{Map, Value};

use super::{CacheControl, Citation};
use crate::{BashResult, CellResult, EditorResult};

/// What a message holds.
#[derive(JsonSchema)]
#[schemars(untagged)]
pub enum InputContent {
    /// One text.
    Text(String),
    /// Blocks.
    Blocks(Vec<InputBlock>),
}

/// A content block of a request. Keys that are not named here are ignored: clients send answers back with their own additions.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum InputBlock {
    /// Text.
    Text(InputText),
    /// A picture; of the user.
    Image {
        /// Where it is.
        source: ImageSource,
        /// Handed on to the model's server.
        cache_control: Option<CacheControl>,
    },
    /// A document.
    Document {
        /// Where it is.
        source: DocumentSource,
        /// Its name.
        title: Option<String>,
        /// What it is about.
        context: Option<String>,
        /// Whether the model is to cite it.
        citations: Option<CitationsSwitch>,
        /// Handed on to the model's server.
        cache_control: Option<CacheControl>,
    },
    /// Something that the client has found; of the user.
    SearchResult {
        /// Where.
        source: String,
        /// Its name.
        title: String,
        /// What it says.
        content: Vec<TextBlock>,
        /// Whether the model is to cite it.
        citations: Option<CitationsSwitch>,
        /// Handed on to the model's server.
        cache_control: Option<CacheControl>,
    },
    /// An earlier answer's reasoning.
    Thinking {
        /// As it came.
        thinking: String,
        /// As it came.
        signature: String,
    },
    /// An earlier answer's hidden reasoning.
    RedactedThinking {
        /// As it came.
        data: String,
    },
    /// An earlier call that the client runs.
    ToolUse {
        /// Of the call.
        #[schemars(length(max = 100), regex(pattern = r"^[a-zA-Z0-9_-]+$"))]
        id: String,
        /// Of the tool.
        name: String,
        /// What the model asked for.
        input: Map<String, Value>,
        /// Who called.
        caller: Option<EchoedCaller>,
        /// Handed on to the model's server.
        cache_control: Option<CacheControl>,
    },
    /// What came of it; of the user.
    ToolResult {
        /// Of the call.
        tool_use_id: String,
        /// What came of it.
        content: Option<ResultContent>,
        /// Whether it failed.
        is_error: Option<bool>,
        /// Handed on to the model's server.
        cache_control: Option<CacheControl>,
    },
    /// An earlier call that this server has run, or will run.
    ServerToolUse {
        /// Of the call. On the Zylon surface any `^[a-zA-Z0-9_]+$`.
        #[schemars(length(max = 100), regex(pattern = r"^srvtoolu_[a-zA-Z0-9_]*$"))]
        id: String,
        /// Of the sub-tool.
        name: String,
        /// What the model asked for.
        input: Map<String, Value>,
        /// Who called.
        caller: Option<EchoedCaller>,
        /// Handed on to the model's server.
        cache_control: Option<CacheControl>,
    },
    /// What came of a shell command.
    BashCodeExecutionToolResult {
        /// Of the call.
        tool_use_id: String,
        /// As it came.
        content: BashResult,
        /// Handed on to the model's server.
        cache_control: Option<CacheControl>,
    },
    /// What came of Python code.
    CodeExecutionToolResult {
        /// Of the call.
        tool_use_id: String,
        /// As it came.
        content: CellResult,
        /// Handed on to the model's server.
        cache_control: Option<CacheControl>,
    },
    /// What came of an edit.
    TextEditorCodeExecutionToolResult {
        /// Of the call.
        tool_use_id: String,
        /// As it came.
        content: EditorResult,
        /// Handed on to the model's server.
        cache_control: Option<CacheControl>,
    },
    /// A file of the Files API for the container's input folder; of the user.
    ContainerUpload(Uploaded),
    /// A block that is handed on as it is.
    #[schemars(untagged)]
    HandedOn(HandedOnBlock),
}

/// A block that this server hands on to the model's server as it is.
#[derive(JsonSchema)]
pub struct HandedOnBlock {
    /// Which.
    #[schemars(rename = "type")]
    pub kind: HandedOnType,
}

/// The types of blocks that are handed on as they are.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the contract's names, of no meaning here")]
pub enum HandedOnType {
    WebSearchToolResult,
    WebFetchToolResult,
    ToolSearchToolResult,
    Compaction,
    McpToolUse,
    McpToolResult,
    ToolAddition,
    ToolRemoval,
}

/// A text of a message.
#[derive(JsonSchema)]
pub struct InputText {
    /// The text.
    pub text: String,
    /// Where it was found, in an earlier answer.
    pub citations: Option<Vec<Citation>>,
    /// Handed on to the model's server.
    pub cache_control: Option<CacheControl>,
}

/// A file for the container.
#[derive(JsonSchema)]
pub struct Uploaded {
    /// `file_...`
    pub file_id: String,
    /// Handed on to the model's server.
    pub cache_control: Option<CacheControl>,
}

/// Where a picture is.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum ImageSource {
    /// Here.
    Base64 {
        /// Such as `image/png`.
        media_type: String,
        /// The bytes.
        data: String,
    },
    /// Elsewhere; the model's server fetches it.
    Url {
        /// Where.
        url: String,
    },
    /// By its id in the Files API.
    File {
        /// Which.
        file_id: String,
    },
}

/// Where a document is.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum DocumentSource {
    /// Here, as a PDF.
    Base64 {
        /// Such as `application/pdf`.
        media_type: String,
        /// The bytes.
        data: String,
    },
    /// Here, as text.
    Text {
        /// Such as `text/plain`.
        media_type: String,
        /// The text.
        data: String,
    },
    /// Here, as blocks.
    Content {
        /// The blocks.
        content: InputContent,
    },
    /// Elsewhere; the model's server fetches it.
    Url {
        /// Where.
        url: String,
    },
    /// By its id in the Files API.
    File {
        /// Which.
        file_id: String,
    },
}

/// Whether the model is to cite.
#[derive(JsonSchema)]
pub struct CitationsSwitch {
    /// Whether it is.
    pub enabled: Option<bool>,
}

/// A text.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum TextBlock {
    /// The only kind.
    Text(InputText),
}

/// What a client's tool says.
#[derive(JsonSchema)]
#[schemars(untagged)]
pub enum ResultContent {
    /// One text.
    Text(String),
    /// Blocks: texts, pictures, documents, search results.
    Blocks(Vec<InputBlock>),
}

/// Who made an earlier call.
#[derive(JsonSchema)]
#[schemars(tag = "type")]
pub enum EchoedCaller {
    /// The model.
    #[schemars(rename = "direct")]
    Direct,
    /// Python code.
    #[schemars(rename = "code_execution_20260120")]
    Dated20260120 {
        /// Of the code's own call.
        tool_id: String,
    },
    /// Python code.
    #[schemars(rename = "code_execution_20250825")]
    Dated20250825 {
        /// Of the code's own call.
        tool_id: String,
    },
}
