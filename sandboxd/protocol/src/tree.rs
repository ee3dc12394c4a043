//! Lists of files.

use crate::FileStat;
use serde::{Deserialize, Serialize};

/// Most files of one [`TreePage`].
pub const MAX_TREE_PAGE: usize = 1000;

/// Answer of `GET /tree`: some of the files, in the order of their paths' bytes. A page may be short, or empty, and still have a next one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreePage {
    /// The files.
    pub files: Vec<TreeFile>,
    /// What to send as `after` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Something was left out: a folder that is nested too deeply, holds too many entries, or cannot be read.
    #[serde(default)]
    pub incomplete: bool,
}

/// One regular file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeFile {
    /// Its path beneath the root, percent-encoded, so that names of any bytes can be asked for.
    pub path: String,
    /// How it is now.
    #[serde(flatten)]
    pub stat: FileStat,
}

/// Answer of `DELETE /tree`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeDeleted {
    /// Files that were removed.
    pub count: u64,
    /// The call was long enough; more are left.
    pub more: bool,
}
