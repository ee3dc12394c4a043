//! Keys, ids and names that clients give: whatever is taken is one file beneath its folder, and reads back as itself.
#![no_main]
#![allow(dead_code, reason = "these modules are compiled by themselves: their crates bring the whole server along")]

#[path = "../../../../api-server/crates/file-store/src/id.rs"]
mod id;
#[path = "../../../../api-server/src/session/key.rs"]
mod key;
#[path = "../../../../api-server/crates/file-store/src/name.rs"]
mod name;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use key::{Folder, Place};
use libfuzzer_sys::fuzz_target;

fn is_beneath(place: &Place) {
    let path = place.path();
    let below = path.strip_prefix(place.folder.path().as_bytes()).unwrap().strip_prefix(b"/").unwrap();
    assert!(!below.is_empty() && !below.contains(&0));
    assert!(below.split(|byte| *byte == b'/').all(|part| !matches!(part, b"" | b"." | b"..")));
    assert!(!place.filename().is_empty() && place.mime_type().contains('/'));
    assert_eq!(Place::of_id(&place.id()).as_ref(), Ok(place));
}

fn never_climbs(path: &str) {
    assert!(!path.split('/').any(|part| part == ".."));
}

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let paths = [Folder::Uploads, Folder::Outputs, Folder::Workspace]
        .map(|folder| [folder.path().as_bytes(), b"/", data].concat());
    let ids = [text.to_string(), BASE64.encode(data)].into_iter().chain(paths.iter().map(|path| BASE64.encode(path)));
    ids.filter_map(|id| Place::of_id(&id).ok()).for_each(|place| is_beneath(&place));
    paths.iter().filter_map(|path| Place::of_path(path)).for_each(|place| is_beneath(&place));
    for key in [text.to_string(), format!("outputs/{text}"), format!("uploads/{text}")] {
        if let Ok(place) = Place::of_key(&key) {
            is_beneath(&place);
        }
        if let Ok(selected) = key::selection(Some(&key)) {
            [selected.uploads, selected.outputs].iter().flatten().for_each(|path| never_climbs(path));
        }
        if let Ok((_, path)) = key::deletion(&key) {
            never_climbs(&path);
        }
    }
    for text in [text.to_string(), format!("file_{text}")] {
        if let Ok(id) = text.parse::<id::FileId>() {
            assert_eq!(id.to_string(), text);
            assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'));
        }
    }
    for kind in ["text/csv", &*text] {
        if let Ok(name) = name::FileName::parse(Some(&text), kind) {
            let name = name.as_str();
            assert!(!matches!(name, "" | "." | "..") && !name.contains(['/', '\\', '\0', '\n', '"']));
            assert_eq!(name::FileName::component(name).unwrap().as_str(), name);
        }
    }
});
