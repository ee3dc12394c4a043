//! Edits of files, with the real binary over a socket pair.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test ends by a panic"
)]

mod common;

use common::{Outcome, SOON, Sandbox, eventually};
use sandboxd_protocol::{
    Edit, EditOutcome, EditRefusal, Exit, FolderEntry, Limits, MAX_EDIT_OUTCOME, MAX_EDITED_FILE, MAX_VIEW,
    MediaFormat, RunKind, RunRequest,
};
use std::{
    fs,
    os::unix::{
        fs::{FileTypeExt as _, PermissionsExt as _, symlink},
        net::UnixListener,
    },
    path::PathBuf,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

fn request(edit: Edit) -> RunRequest {
    RunRequest {
        run: RunKind::Edit(edit),
        env: std::collections::BTreeMap::from([("SOMEWHERE".to_owned(), "/mnt/user-data/outputs".to_owned())]),
        limits: Limits { timeout_ms: 20_000, output_bytes: MAX_EDIT_OUTCOME },
    }
}

fn read(outcome: &Outcome) -> EditOutcome {
    assert_eq!(outcome.exit, Some(Exit::default()), "{}", outcome.error_text());
    serde_json::from_slice(&outcome.stdout).unwrap()
}

/// One sandbox, and a new id for each edit.
struct Editor {
    sandbox: Sandbox,
    edits: AtomicUsize,
}

impl Editor {
    async fn new() -> Self {
        Self { sandbox: Sandbox::main().await, edits: AtomicUsize::new(0) }
    }

    async fn edit(&self, edit: Edit) -> EditOutcome {
        let id = format!("edit-{}", self.edits.fetch_add(1, Ordering::Relaxed));
        read(&self.sandbox.client.run(&id, &request(edit)).await)
    }

    async fn view(&self, path: &str) -> EditOutcome {
        self.edit(Edit::View { path: path.into(), view_range: None }).await
    }

    async fn create(&self, path: &str, text: &str) -> EditOutcome {
        self.edit(Edit::Create { path: path.into(), file_text: text.into() }).await
    }

    async fn replace(&self, path: &str, old: &str, new: &str) -> EditOutcome {
        self.edit(Edit::StrReplace { path: path.into(), old_str: old.into(), new_str: new.into() }).await
    }

    fn workspace(&self, below: &str) -> PathBuf {
        self.sandbox.path("workspace").join(below)
    }
}

fn text(content: &str, start_line: u64, num_lines: u64, total_lines: u64) -> EditOutcome {
    EditOutcome::Text { content: content.into(), start_line, num_lines, total_lines }
}

const CREATED: EditOutcome = EditOutcome::Created { is_file_update: false };

fn refusal(outcome: EditOutcome) -> EditRefusal {
    match outcome {
        EditOutcome::Refused { why } => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_file_is_made_viewed_and_changed() {
    let editor = Editor::new().await;
    assert_eq!(editor.create("new/deep/a.txt", "one\ntwo\nthree\n").await, CREATED);
    assert_eq!(editor.view("new/deep/a.txt").await, text("one\ntwo\nthree", 1, 3, 3));
    let part = Edit::View { path: "/home/agent/workspace/new/deep/a.txt".into(), view_range: Some([2, 9]) };
    assert_eq!(editor.edit(part).await, text("two\nthree", 2, 2, 3));
    let changed = EditOutcome::Changed {
        start_line: 2,
        old_lines: 1,
        new_lines: 1,
        lines: Some(vec!["-two".into(), "+2".into()]),
    };
    assert_eq!(editor.replace("new/deep/a.txt", "two", "2").await, changed);
    let insert = Edit::Insert { path: "new/deep/a.txt".into(), insert_line: 0, insert_text: "zero".into() };
    let inserted =
        EditOutcome::Changed { start_line: 0, old_lines: 0, new_lines: 1, lines: Some(vec!["+zero".into()]) };
    assert_eq!(editor.edit(insert).await, inserted);
    assert_eq!(fs::read_to_string(editor.workspace("new/deep/a.txt")).unwrap(), "zero\none\n2\nthree\n");
    assert_eq!(editor.create("new/deep/a.txt", "").await, EditOutcome::Created { is_file_update: true });
    assert_eq!(editor.view("new/deep/a.txt").await, text("", 1, 0, 0));
    assert_eq!(fs::read_dir(editor.workspace("new/deep")).unwrap().count(), 1, "nothing is left beside it");
}

#[tokio::test]
async fn an_edit_is_joined_and_never_done_twice() {
    let editor = Editor::new().await;
    let create = request(Edit::Create { path: "a".into(), file_text: "x".into() });
    let client = &editor.sandbox.client;
    assert_eq!(read(&client.run("once", &create).await), CREATED);
    assert_eq!(read(&client.run("once", &create).await), CREATED, "the second asks for the same edit");
    let whole = client.join("once", 0, 0).await.unwrap().end().await;
    let rest = client.join("once", 5, 0).await.unwrap().end().await;
    assert_eq!((read(&whole), rest.stdout.as_slice()), (CREATED, &whole.stdout[5..]));
}

#[tokio::test]
async fn variables_name_the_folders_of_a_run() {
    let editor = Editor::new().await;
    assert_eq!(editor.create("$SOMEWHERE/a.txt", "out").await, CREATED);
    assert_eq!(fs::read_to_string(editor.sandbox.path("outputs/a.txt")).unwrap(), "out");
    fs::write(editor.sandbox.path("uploads/in.csv"), "1,2\n").unwrap();
    assert_eq!(editor.view("${INPUT_DIR}/in.csv").await, text("1,2", 1, 1, 1));
    assert_eq!(editor.create("$OUTPUT_DIR/a.txt", "x").await, CREATED);
    let outside = EditRefusal::NoMount { path: "/home/agent/.profile".into() };
    assert_eq!(refusal(editor.view("$HOME/.profile").await), outside);
}

#[tokio::test]
async fn nothing_outside_the_mounts_is_shown_or_written() {
    let editor = Editor::new().await;
    let elsewhere = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::write(elsewhere.path().join("secret"), "s").unwrap();
    symlink(elsewhere.path(), editor.workspace("out")).unwrap();
    symlink(elsewhere.path().join("secret"), editor.workspace("file")).unwrap();
    symlink(elsewhere.path().join("new"), editor.workspace("dangling")).unwrap();
    for path in ["/etc/passwd", "../../../etc/passwd", "out", "out/secret", "file", "dangling", "/proc/self/environ"] {
        let asked = if path.starts_with('/') { path.to_owned() } else { format!("/home/agent/workspace/{path}") };
        let outside = EditRefusal::NoMount { path: asked };
        assert_eq!(refusal(editor.view(path).await), outside);
        assert_eq!(refusal(editor.create(path, "x").await), outside);
        assert_eq!(refusal(editor.replace(path, "s", "x").await), outside);
    }
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(elsewhere.path().join("secret")).unwrap(), "s");
}

#[tokio::test]
async fn links_between_the_mounts_are_followed_and_stay_links() {
    let editor = Editor::new().await;
    fs::write(editor.sandbox.path("outputs/a.txt"), "one\n").unwrap();
    symlink("/mnt/user-data/outputs/a.txt", editor.workspace("link")).unwrap();
    assert_eq!(editor.view("link").await, text("one", 1, 1, 1));
    assert!(matches!(editor.replace("link", "one", "two").await, EditOutcome::Changed { .. }));
    assert_eq!(fs::read_to_string(editor.sandbox.path("outputs/a.txt")).unwrap(), "two\n");
    assert!(fs::symlink_metadata(editor.workspace("link")).unwrap().is_symlink());
    assert_eq!(editor.create("link", "three").await, EditOutcome::Created { is_file_update: true });
    assert_eq!(fs::read_to_string(editor.sandbox.path("outputs/a.txt")).unwrap(), "three");
}

/// A link that is swapped between a folder inside and one outside, all the while.
#[tokio::test]
async fn a_link_that_changes_under_an_edit_leads_nowhere_else() {
    let editor = Editor::new().await;
    let elsewhere = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::write(elsewhere.path().join("a"), "outside").unwrap();
    fs::create_dir(editor.workspace("inside")).unwrap();
    fs::write(editor.workspace("inside/a"), "inside").unwrap();
    let swapping = Busy::start({
        let (link, next) = (editor.workspace("link"), editor.workspace("next"));
        let targets = [PathBuf::from("inside"), elsewhere.path().to_owned()];
        move || {
            for target in &targets {
                symlink(target, &next).unwrap();
                let _ = fs::rename(&next, &link);
                let _ = fs::remove_file(&next);
            }
            let _ = fs::remove_file(&link);
            let _ = fs::remove_dir_all(&link);
        }
    });
    for round in 0..300 {
        if let EditOutcome::Text { content, .. } = editor.view("link/a").await {
            assert_eq!(content, "inside");
        }
        editor.create(&format!("link/new-{round}"), "x").await;
        editor.replace("link/a", "outside", "changed").await;
    }
    assert!(swapping.end() > 0);
    assert_eq!(fs::read_to_string(elsewhere.path().join("a")).unwrap(), "outside");
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 1);
}

/// Something that a thread does over and over.
struct Busy {
    done: Arc<AtomicBool>,
    thread: thread::JoinHandle<usize>,
}

impl Busy {
    fn start(mut work: impl FnMut() + Send + 'static) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&done);
        let thread = thread::spawn(move || {
            let mut rounds = 0;
            while !told.load(Ordering::Relaxed) {
                work();
                rounds += 1;
            }
            rounds
        });
        Self { done, thread }
    }

    /// How often it was done.
    fn end(self) -> usize {
        self.done.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

#[tokio::test]
async fn pipes_and_sockets_are_refused_at_once() {
    let editor = Editor::new().await;
    assert!(Command::new("mkfifo").arg(editor.workspace("pipe")).status().unwrap().success());
    let _socket = UnixListener::bind(editor.workspace("socket")).unwrap();
    for name in ["pipe", "socket"] {
        let odd = EditRefusal::NotRegular { path: format!("/home/agent/workspace/{name}") };
        assert_eq!(refusal(editor.view(name).await), odd);
        assert_eq!(refusal(editor.create(name, "x").await), odd);
        assert_eq!(refusal(editor.replace(name, "a", "b").await), odd);
    }
    assert!(fs::symlink_metadata(editor.workspace("pipe")).unwrap().file_type().is_fifo());
}

#[tokio::test]
async fn read_only_folders_are_shown_and_not_written() {
    let editor = Editor::new().await;
    fs::write(editor.sandbox.path("uploads/a.txt"), "one\n").unwrap();
    let path = "/mnt/user-data/uploads/a.txt";
    let read_only = EditRefusal::ReadOnly { path: path.into(), mount: "/mnt/user-data/uploads".into() };
    assert_eq!(editor.view(path).await, text("one", 1, 1, 1));
    assert_eq!(refusal(editor.create(path, "x").await), read_only);
    assert_eq!(refusal(editor.replace(path, "one", "two").await), read_only);
    symlink(path, editor.workspace("link")).unwrap();
    assert!(matches!(refusal(editor.create("link", "x").await), EditRefusal::ReadOnly { .. }));
    assert_eq!(fs::read_to_string(editor.sandbox.path("uploads/a.txt")).unwrap(), "one\n");
}

#[tokio::test]
async fn what_cannot_be_edited_is_told_by_its_kind() {
    let editor = Editor::new().await;
    fs::create_dir(editor.workspace("folder")).unwrap();
    fs::write(editor.workspace("file"), "x x\n").unwrap();
    let path = |name: &str| format!("/home/agent/workspace/{name}");
    assert_eq!(refusal(editor.view("none").await), EditRefusal::NotFound { path: path("none") });
    assert_eq!(refusal(editor.replace("none", "a", "b").await), EditRefusal::NotFound { path: path("none") });
    assert_eq!(refusal(editor.view("file/x").await), EditRefusal::NotFound { path: path("file/x") });
    assert_eq!(refusal(editor.create("file/x", "").await), EditRefusal::NotFolder { path: path("file/x") });
    assert_eq!(refusal(editor.create("folder", "").await), EditRefusal::IsFolder { path: path("folder") });
    assert_eq!(refusal(editor.create("", "").await), EditRefusal::BadPath);
    let workspace = EditRefusal::IsFolder { path: "/home/agent/workspace".into() };
    assert_eq!(refusal(editor.create("/home/agent/workspace", "").await), workspace);
    assert_eq!(refusal(editor.replace("folder", "a", "b").await), EditRefusal::IsFolder { path: path("folder") });
    assert_eq!(refusal(editor.create(&"n".repeat(300), "").await), EditRefusal::BadPath);
    let twice = EditRefusal::Ambiguous { count: 2, lines: vec![1, 1] };
    assert_eq!(refusal(editor.replace("file", "x", "y").await), twice);
    assert_eq!(fs::read_to_string(editor.workspace("file")).unwrap(), "x x\n");
}

#[tokio::test]
async fn sizes_are_bounded_and_told() {
    let editor = Editor::new().await;
    let huge = fs::File::create(editor.workspace("huge")).unwrap();
    huge.set_len(1 << 40).unwrap();
    let path = "/home/agent/workspace/huge".to_owned();
    let too_large = EditRefusal::TooLarge { path, size: 1 << 40, limit: MAX_EDITED_FILE };
    assert_eq!(refusal(editor.view("huge").await), too_large);
    assert_eq!(refusal(editor.replace("huge", "a", "b").await), too_large);
    fs::write(editor.workspace("long"), "0123456789abcde\n".repeat(128 * 1024)).unwrap();
    let refused = refusal(editor.view("long").await);
    let EditRefusal::ViewTooLarge { size, limit, total_lines, .. } = refused else { panic!("{refused:?}") };
    assert_eq!((size, limit, total_lines), ((2 << 20) - 1, MAX_VIEW, 128 * 1024));
    let part = Edit::View { path: "long".into(), view_range: Some([65_537, 131_072]) };
    let EditOutcome::Text { content, num_lines, .. } = editor.edit(part).await else { panic!("no text") };
    assert_eq!((content.len(), num_lines), ((1 << 20) - 1, 65_536));
    // The worst that a view may have to show.
    fs::write(editor.workspace("controls"), vec![1; 1 << 20]).unwrap();
    let EditOutcome::Text { content, .. } = editor.view("controls").await else { panic!("no text") };
    assert_eq!(content.len(), 1 << 20);
}

/// T06: 5 MB.
#[tokio::test]
async fn a_large_text_is_written_byte_by_byte() {
    let editor = Editor::new().await;
    let content = "0123456789 \u{20ac}\n".repeat(340_000);
    assert_eq!(editor.create("large", &content).await, CREATED);
    assert_eq!(fs::read_to_string(editor.workspace("large")).unwrap(), content);
}

#[tokio::test]
async fn modes_are_kept_and_new_files_are_plain() {
    let editor = Editor::new().await;
    fs::write(editor.workspace("run.sh"), "echo one\n").unwrap();
    fs::set_permissions(editor.workspace("run.sh"), fs::Permissions::from_mode(0o750)).unwrap();
    let mode = |name: &str| fs::metadata(editor.workspace(name)).unwrap().permissions().mode() & 0o7777;
    assert!(matches!(editor.replace("run.sh", "one", "two").await, EditOutcome::Changed { .. }));
    assert_eq!(mode("run.sh"), 0o750);
    assert_eq!(editor.create("run.sh", "x").await, EditOutcome::Created { is_file_update: true });
    assert_eq!(mode("run.sh"), 0o750);
    editor.create("plain", "x").await;
    assert_eq!(mode("plain"), 0o644);
}

/// Readers see the old text or the new one, whole.
#[tokio::test]
async fn an_edit_is_seen_whole_or_not_at_all() {
    let editor = Editor::new().await;
    let text = |n: usize| format!("{n:04}-").repeat(20_000);
    editor.create("a", &text(0)).await;
    let path = editor.workspace("a");
    let reading = Busy::start(move || {
        let seen = fs::read_to_string(&path).unwrap();
        assert_eq!(seen, seen[..5].repeat(20_000));
    });
    for n in 1..60 {
        editor.create("a", &text(n)).await;
        let changed = editor.replace("a", &text(n), &text(n + 1000)).await;
        assert!(matches!(changed, EditOutcome::Changed { .. }), "{changed:?}");
    }
    assert!(reading.end() > 0);
}

#[tokio::test]
async fn folders_are_listed_by_the_bytes_of_their_names() {
    let editor = Editor::new().await;
    fs::create_dir(editor.workspace("b")).unwrap();
    for name in ["a", ".hidden", "B", "\u{e9}"] {
        fs::write(editor.workspace(name), "").unwrap();
    }
    symlink("b", editor.workspace("to-folder")).unwrap();
    symlink("nowhere", editor.workspace("to-nothing")).unwrap();
    let entry = |(name, is_folder): (&str, bool)| FolderEntry { name: name.into(), is_folder };
    let entries = [
        (".hidden", false),
        ("B", false),
        ("a", false),
        ("b", true),
        ("to-folder", true),
        ("to-nothing", false),
        ("\u{e9}", false),
    ];
    let path = "/home/agent/workspace".to_owned();
    let listed = EditOutcome::Folder { path, entries: entries.map(entry).to_vec(), cut: false };
    assert_eq!(editor.view("/home/agent/workspace").await, listed);
    fs::create_dir(editor.workspace("many")).unwrap();
    for n in 0..1001 {
        fs::write(editor.workspace(&format!("many/{n:04}")), "").unwrap();
    }
    let EditOutcome::Folder { entries, cut, .. } = editor.view("many").await else { panic!("no folder") };
    assert_eq!((entries.len(), entries.last().unwrap().name.as_str(), cut), (1000, "0999", true));
}

#[tokio::test]
async fn images_are_shown_as_they_are_up_to_a_size() {
    let editor = Editor::new().await;
    fs::write(editor.workspace("a.txt"), b"\x89PNG\r\n\x1a\n").unwrap();
    let image = EditOutcome::Media { format: MediaFormat::Png, data: "iVBORw0KGgo=".into() };
    assert_eq!(editor.view("a.txt").await, image);
    let mut large = b"\x89PNG\r\n\x1a\n".to_vec();
    large.resize(5 << 20, 0xff);
    fs::write(editor.workspace("large.png"), &large).unwrap();
    assert!(matches!(editor.view("large.png").await, EditOutcome::Media { data, .. } if data.len() == 6_990_508));
    large.push(0);
    fs::write(editor.workspace("large.png"), &large).unwrap();
    assert!(matches!(refusal(editor.view("large.png").await), EditRefusal::TooLarge { limit: 5_242_880, .. }));
}

#[tokio::test]
async fn edits_do_not_wait_for_commands() {
    let editor = Editor::new().await;
    let mut followed = Vec::new();
    for n in 0..sandboxd_protocol::RUNNING_RUNS {
        let request = common::bash("until test -e go; do sleep 0.05; done; echo went");
        followed.push(editor.sandbox.client.start(&format!("busy-{n}"), &request).await.unwrap());
    }
    assert_eq!(editor.create("go", "").await, CREATED);
    for run in followed {
        assert_eq!(run.end().await.text(), "went\n");
    }
}

#[tokio::test]
async fn an_edit_that_nobody_waits_for_is_finished() {
    let mut editor = Editor::new().await;
    let text = "0123456789abcdef".repeat(250_000);
    let edit = request(Edit::Create { path: "a".into(), file_text: text.clone() });
    let following = editor.sandbox.client.start("cancelled", &edit).await.unwrap();
    let (status, _) = editor.sandbox.client.simple(hyper::Method::DELETE, "/runs/cancelled").await;
    assert_eq!(status, 204);
    let outcome = following.end().await;
    assert_eq!(read(&outcome), CREATED, "it had begun, and says what it did");
    assert_eq!(fs::read_to_string(editor.workspace("a")).unwrap(), text);
    let view = request(Edit::View { path: "a".into(), view_range: None });
    let _refused_or_done = editor.sandbox.client.start("last", &view).await;
    editor.sandbox.process.terminate();
    assert!(editor.sandbox.process.ended_within(SOON).await);
    assert!(eventually(SOON, || fs::read_dir(editor.workspace("")).unwrap().count() == 1).await);
}
