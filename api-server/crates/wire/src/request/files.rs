//! The stored files that a request names.

use serde_json::{Map, Value};

use super::{Block, MessagesRequest, Role};

/// A file for the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerUpload {
    /// The file's id, as the client gives it.
    pub file_id: String,
    /// Whether the model has answered since: then the file was put into the container before.
    pub is_answered: bool,
}

/// What shows a stored file to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// An `image` block.
    Image,
    /// A `document` block.
    Document,
}

/// The `source` of a block that names a stored file.
#[derive(Debug)]
pub struct FileSource<'a> {
    /// Where its block stands in the request.
    pub path: String,
    /// The kind of its block.
    pub medium: Medium,
    /// `{"type": "file", "file_id": ...}`, to be replaced by the content.
    pub source: &'a mut Value,
}

impl MessagesRequest {
    /// The files that `container_upload` blocks name, each once, in the order in which they were named last.
    pub fn container_uploads(&self) -> Vec<ContainerUpload> {
        let mut uploads: Vec<ContainerUpload> = Vec::new();
        let answered = self.messages.iter().rposition(|message| message.role == Role::Assistant).unwrap_or_default();
        for (index, message) in self.messages.iter().enumerate() {
            for block in message.content.iter().filter(|block| block.kind() == "container_upload") {
                let file_id = block.text("file_id").to_owned();
                uploads.retain(|earlier| earlier.file_id != file_id);
                uploads.push(ContainerUpload { file_id, is_answered: index < answered });
            }
        }
        uploads
    }

    /// The sources of image and document blocks that name a stored file, those within tool results included.
    pub fn file_sources_mut(&mut self) -> Vec<FileSource<'_>> {
        let mut found = Vec::new();
        for (index, message) in self.messages.iter_mut().enumerate() {
            for (place, Block(block)) in message.content.iter_mut().enumerate() {
                let path = format!("messages.{index}.content.{place}");
                if block.get("type").is_some_and(|kind| kind == "tool_result") {
                    let inner = block.get_mut("content").and_then(Value::as_array_mut);
                    for (place, block) in inner.into_iter().flatten().enumerate() {
                        let path = format!("{path}.content.{place}");
                        found.extend(block.as_object_mut().and_then(|block| file_source(path, block)));
                    }
                } else {
                    found.extend(file_source(path, block));
                }
            }
        }
        found
    }
}

fn file_source(path: String, block: &mut Map<String, Value>) -> Option<FileSource<'_>> {
    let medium = match block.get("type")?.as_str()? {
        "image" => Medium::Image,
        "document" => Medium::Document,
        _ => return None,
    };
    let source = block.get_mut("source").filter(|source| source.get("type").is_some_and(|kind| kind == "file"))?;
    Some(FileSource { path, medium, source })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{ApiVersion, Rules, Surface};

    fn read(messages: &Value) -> MessagesRequest {
        let rules = Rules { surface: Surface::Anthropic, version: ApiVersion::Current, default_max_tokens: Some(1) };
        MessagesRequest::parse(json!({ "model": "m", "messages": messages }).to_string().as_bytes(), &rules).unwrap()
    }

    fn upload(id: &str) -> Value {
        json!({ "type": "container_upload", "file_id": id })
    }

    #[test]
    fn uploads_come_once_each_and_those_of_earlier_turns_are_marked() {
        let user = |blocks: Vec<Value>| json!({ "role": "user", "content": blocks });
        let answer = json!({ "role": "assistant", "content": "done" });
        let uploads = |messages: &Value| -> Vec<_> {
            let uploads = read(messages).container_uploads().into_iter();
            uploads.map(|upload| (upload.file_id, upload.is_answered)).collect()
        };
        let rows = [
            ("the first turn", json!([user(vec![upload("a"), upload("b")])]), vec![("a", false), ("b", false)]),
            (
                "a later one",
                json!([user(vec![upload("a")]), answer, user(vec![upload("b")])]),
                vec![("a", true), ("b", false)],
            ),
            (
                "named again",
                json!([user(vec![upload("a"), upload("b")]), answer, user(vec![upload("a")])]),
                vec![("b", true), ("a", false)],
            ),
            ("a pause", json!([user(vec![upload("a")]), answer]), vec![("a", true)]),
        ];
        for (name, messages, expected) in rows {
            let expected: Vec<_> = expected.into_iter().map(|(id, answered)| (id.to_owned(), answered)).collect();
            assert_eq!(uploads(&messages), expected, "{name}");
        }
    }

    #[test]
    fn sources_that_name_files_are_found_wherever_they_stand_and_can_be_replaced() {
        let source = |id: &str| json!({ "type": "file", "file_id": id });
        let picture = |id: &str| json!({ "type": "image", "source": source(id) });
        let page = json!({ "type": "document", "source": source("b") });
        let shown =
            json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "eA==" } });
        let result = json!({ "type": "tool_result", "tool_use_id": "t", "content": ["x", picture("c")] });
        let mut request = read(&json!([
            { "role": "user", "content": [picture("a"), page, shown] },
            { "role": "assistant", "content": [{ "type": "tool_use", "id": "t", "name": "n", "input": { "source": source("d") } }] },
            { "role": "user", "content": [result] },
        ]));
        let found: Vec<_> = request.file_sources_mut().into_iter().map(|found| (found.path, found.medium)).collect();
        let expected = [
            ("messages.0.content.0", Medium::Image),
            ("messages.0.content.1", Medium::Document),
            ("messages.2.content.0.content.1", Medium::Image),
        ];
        assert_eq!(found, expected.map(|(path, medium)| (path.to_owned(), medium)));
        for found in request.file_sources_mut() {
            *found.source = json!({ "type": "text", "media_type": "text/plain", "data": "" });
        }
        assert!(request.file_sources_mut().is_empty());
    }
}
