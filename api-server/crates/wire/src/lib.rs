//! The Messages and Files contract as types: requests parsed per surface, responses, stream events, errors and ids.
//!
//! No IO, no clock, no randomness: whoever calls passes in time and random bytes. Blocks that this project does not act on stay
//! [`serde_json::Value`]s with their keys in the order in which they came, so that a replayed prompt is the same prompt.

pub mod block;
pub mod error;
pub mod file;
pub mod id;
mod model;
pub mod request;
pub mod response;
pub mod schema;
pub mod stream;
mod surface;
mod tool;
mod walk;

pub use block::{
    BashOutputFile, BashResult, Caller, CellOutputFile, CellResult, ContentBlock, EditorResult, ErrorDetail, FileType,
    ToolErrorCode,
};
pub use error::{ApiError, ErrorBody, ErrorType};
pub use file::{DeletedFile, DeletedPrefix, FileList, FileMetadata, FileScope, SessionFile, SessionFileList};
pub use id::IdSeed;
pub use model::{ModelBody, ModelCapabilities, ModelInfo, ModelList};
pub use request::{Block, ContainerUpload, FileSource, InputMessage, Medium, MessagesRequest, Role, Rules};
pub use response::{
    CacheCreation, ContainerInfo, InteractionStopReason, Message, OutputTokensDetails, ServerToolUsage, StopReason,
    Usage,
};
pub use stream::{Delta, MessageDelta, StreamEvent};
pub use surface::{ApiVersion, Surface};
pub use tool::{Callers, ClientTool, CodeTool, CodeToolVersion, SUPPORTED_SERVER_TOOLS, Tool};
