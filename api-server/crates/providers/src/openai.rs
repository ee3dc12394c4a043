//! The dialect of chat completions, which many servers of open models speak.

mod body;
mod reader;

pub(crate) use body::body;
pub(crate) use reader::Stream;
