//! Views: the lines of a file, an image, a folder.

use super::{
    path::Place,
    store::Opened,
    text::{self, Selection},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use rustix::{
    fd::OwnedFd,
    fs::{AtFlags, Dir, FileType, statat},
};
use sandboxd_protocol::{EditOutcome, EditRefusal, FolderEntry, MAX_MEDIA, MAX_VIEW, MediaFormat};
use std::ffi::CString;

/// Names that are listed at most.
const MAX_LISTED: usize = 1000;
/// Names that are looked at to find the first of them.
const MAX_NAMES: usize = 20_000;

pub(super) fn view(place: &Place<'_>, range: Option<[i64; 2]>) -> Result<EditOutcome, EditRefusal> {
    let (file, stat) = match place.open()? {
        Opened::File(file, stat) => (file, stat),
        Opened::Folder(folder) => return list(place, &folder),
    };
    let bytes = place.read(file, &stat)?;
    match media_format(&bytes) {
        Some(format) => media(place, format, &bytes),
        None => lines(place, &bytes, range),
    }
}

fn lines(place: &Place<'_>, bytes: &[u8], range: Option<[i64; 2]>) -> Result<EditOutcome, EditRefusal> {
    let Selection { bytes: shown, start_line, num_lines, total_lines } = text::view(bytes, range)?;
    let shown = bytes.get(shown).unwrap_or_default();
    let size = shown.len() as u64;
    if size > MAX_VIEW {
        return Err(EditRefusal::ViewTooLarge { path: place.asked.clone(), size, limit: MAX_VIEW, total_lines });
    }
    let content = String::from_utf8_lossy(shown).into_owned();
    Ok(EditOutcome::Text { content, start_line, num_lines, total_lines })
}

fn media(place: &Place<'_>, format: MediaFormat, bytes: &[u8]) -> Result<EditOutcome, EditRefusal> {
    let size = bytes.len() as u64;
    if size > MAX_MEDIA {
        return Err(EditRefusal::TooLarge { path: place.asked.clone(), size, limit: MAX_MEDIA });
    }
    Ok(EditOutcome::Media { format, data: STANDARD.encode(bytes) })
}

/// By the first bytes, whatever the name says.
fn media_format(bytes: &[u8]) -> Option<MediaFormat> {
    let is_webp = bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP".as_slice());
    let is_gif = bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a");
    match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some(MediaFormat::Png),
        [0xff, 0xd8, 0xff, ..] => Some(MediaFormat::Jpeg),
        _ if is_gif => Some(MediaFormat::Gif),
        _ if is_webp => Some(MediaFormat::Webp),
        _ if bytes.starts_with(b"%PDF-") => Some(MediaFormat::Pdf),
        _ => None,
    }
}

fn list(place: &Place<'_>, folder: &OwnedFd) -> Result<EditOutcome, EditRefusal> {
    let read = Dir::read_from(folder).map_err(|error| place.refused(error))?;
    let names = read.map_while(Result::ok).map(|entry| entry.file_name().to_owned());
    let mut names: Vec<CString> =
        names.filter(|name| !matches!(name.to_bytes(), b"." | b"..")).take(MAX_NAMES).collect();
    names.sort_unstable();
    let cut = names.len() > MAX_LISTED;
    names.truncate(MAX_LISTED);
    let entries = names.iter().map(|name| FolderEntry {
        name: String::from_utf8_lossy(name.to_bytes()).into_owned(),
        // A link is shown by what it leads to; where that is makes no difference.
        is_folder: statat(folder, name.as_c_str(), AtFlags::empty())
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir()),
    });
    Ok(EditOutcome::Folder { path: place.asked.clone(), entries: entries.collect(), cut })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_and_documents_are_told_by_their_first_bytes() {
        for (bytes, format) in [
            (b"\x89PNG\r\n\x1a\n...".as_slice(), Some(MediaFormat::Png)),
            (b"\xff\xd8\xff\xe0", Some(MediaFormat::Jpeg)),
            (b"GIF89a", Some(MediaFormat::Gif)),
            (b"RIFF\x10\0\0\0WEBPVP8 ", Some(MediaFormat::Webp)),
            (b"%PDF-1.7\n", Some(MediaFormat::Pdf)),
            (b"RIFF\x10\0\0\0WAVE", None),
            (b"\x89PNG", None),
            (b"GIF8", None),
            (b"", None),
        ] {
            assert_eq!(media_format(bytes), format, "{bytes:?}");
        }
    }
}
