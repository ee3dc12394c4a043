use super::*;
use proptest::prelude::*;

fn shown(text: &str, range: Option<[i64; 2]>) -> Result<(&str, u64, u64, u64), EditRefusal> {
    view(text.as_bytes(), range).map(|lines| (&text[lines.bytes], lines.start_line, lines.num_lines, lines.total_lines))
}

fn changed(change: Result<Change, EditRefusal>) -> Result<String, EditRefusal> {
    change.map(|change| String::from_utf8(change.content).unwrap())
}

fn hunk(change: Result<Change, EditRefusal>) -> (u64, u64, u64, Vec<String>) {
    match change.unwrap().outcome {
        EditOutcome::Changed { start_line, old_lines, new_lines, lines } => {
            (start_line, old_lines, new_lines, lines.unwrap())
        }
        other => panic!("{other:?}"),
    }
}

fn ambiguous(count: u64, lines: &[u64]) -> EditRefusal {
    EditRefusal::Ambiguous { count, lines: lines.to_vec() }
}

/// T12.
#[test]
fn views_are_clamped_at_the_end_and_refused_before_the_start() {
    let text = "a\nb\nc\n";
    assert_eq!(shown(text, None), Ok(("a\nb\nc", 1, 3, 3)));
    assert_eq!(shown(text, Some([1, -1])), Ok(("a\nb\nc", 1, 3, 3)));
    assert_eq!(shown(text, Some([2, 2])), Ok(("b", 2, 1, 3)));
    assert_eq!(shown(text, Some([3, 700])), Ok(("c", 3, 1, 3)));
    for [start, end] in [[0, 1], [5, 6], [4, -1], [3, 2], [-1, -1], [1, 0], [1, -2], [i64::MIN, i64::MAX]] {
        let bad = EditRefusal::BadRange { start, end, total_lines: 3 };
        assert_eq!(shown(text, Some([start, end])), Err(bad), "[{start}, {end}]");
    }
    for range in [None, Some([1, -1]), Some([1, 9])] {
        assert_eq!(shown("", range), Ok(("", 1, 0, 0)), "{range:?}");
    }
    assert_eq!(shown("a\nb", None), Ok(("a\nb", 1, 2, 2)));
    assert_eq!(shown("a\n\n", None), Ok(("a\n", 1, 2, 2)));
    assert_eq!(shown("a\r\nb\r\n", Some([1, 1])), Ok(("a\r", 1, 1, 2)));
    assert_eq!(shown("a\u{2028}b\x0cc", None).map(|(_, _, count, _)| count), Ok(1), "only a line feed ends a line");
}

/// T10.
#[test]
fn carriage_returns_are_matched_and_written_back() {
    assert_eq!(changed(replace(b"a\r\nb\r\nc\r\n", "a\nb", "A\nB")), Ok("A\r\nB\r\nc\r\n".into()));
    assert_eq!(changed(replace(b"a\r\nb\r\n", "a\r\nb", "A\nB")), Ok("A\nB\r\n".into()), "an exact match is literal");
    assert_eq!(changed(replace(b"a\nb\r\nc\nd\r\n", "b\nc", "x\ny\nz")), Ok("a\nx\r\ny\r\nz\nd\r\n".into()));
    assert_eq!(changed(replace(b"a\nb\n", "a\r\nb", "x")), Err(EditRefusal::NoMatch));
    assert_eq!(changed(replace(b"a\r\nb\r\na\r\nb\r\n", "a\nb", "x")), Err(ambiguous(2, &[1, 3])));
    assert_eq!(
        hunk(replace(b"a\r\nb\r\nc\r\n", "b\nc", "x")),
        (2, 2, 1, vec!["-b\r".into(), "-c\r".into(), "+x\r".into()])
    );
}

/// T11.
#[test]
fn only_one_place_is_replaced_and_literally() {
    assert_eq!(changed(replace(b"x\ny x\nz\nx\n", "x", "q")), Err(ambiguous(3, &[1, 2, 4])));
    assert_eq!(changed(replace(b"aaa", "aa", "b")), Err(ambiguous(2, &[1, 1])));
    assert_eq!(changed(replace(b"abc", "", "x")), Err(EditRefusal::EmptyOldStr));
    assert_eq!(changed(replace(b"abc", "B", "x")), Err(EditRefusal::NoMatch));
    assert_eq!(changed(replace(b"abc", "b", "$1\\0")), Ok("a$1\\0c".into()));
    assert_eq!(changed(replace(b"abc", "b", "")), Ok("ac".into()));
}

#[test]
fn a_change_tells_the_lines_that_it_touched() {
    let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
    let setting = b"{\n  \"setting\": \"value\",\n  \"debug\": true\n}";
    assert_eq!(
        hunk(replace(setting, "\"debug\": true", "\"debug\": false")),
        (3, 1, 1, lines(&["-  \"debug\": true", "+  \"debug\": false"]))
    );
    assert_eq!(hunk(replace(b"a\nb\nc\n", "b\n", "")), (2, 1, 0, lines(&["-b"])));
    assert_eq!(hunk(replace(b"a\nb\nc\n", "b", "")), (2, 1, 1, lines(&["-b", "+"])));
    assert_eq!(hunk(replace(b"a\nb\nc\n", "a\n", "x")), (1, 2, 1, lines(&["-a", "-b", "+xb"])));
    assert_eq!(hunk(replace(b"a\nb", "b", "x\ny\n")), (2, 1, 2, lines(&["-b", "+x", "+y"])));
    assert_eq!(hunk(insert(b"a\nb\n", 1, "x\ny")), (1, 0, 2, lines(&["+x", "+y"])));
    assert_eq!(hunk(insert(b"a\nb", 2, "x")), (2, 0, 1, lines(&["+x"])));
    let long = "x".repeat(MAX_HUNK);
    let EditOutcome::Changed { old_lines, new_lines, lines, .. } =
        replace(long.as_bytes(), &long, "y").unwrap().outcome
    else {
        panic!("no change")
    };
    assert_eq!((old_lines, new_lines, lines), (1, 1, None), "one line as long as the file is not told twice");
}

#[test]
fn insertions_keep_the_ends_of_lines() {
    for (name, text, after, lines, expected) in [
        ("at the beginning", "a\nb\n", 0, "x", "x\na\nb\n"),
        ("in between", "a\nb\n", 1, "x\n", "a\nx\nb\n"),
        ("at the end", "a\nb\n", 2, "x", "a\nb\nx\n"),
        ("after a line without an end", "a\nb", 2, "x", "a\nb\nx"),
        ("after a line without an end, with one", "a\nb", 2, "x\n", "a\nb\nx\n"),
        ("before a line without an end", "a\nb", 1, "x", "a\nx\nb"),
        ("into nothing", "", 0, "x", "x"),
        ("an empty line", "a\n", 0, "", "\na\n"),
        ("with carriage returns", "a\r\nb\r\n", 1, "x\ny", "a\r\nx\r\ny\r\nb\r\n"),
        ("with carriage returns, at the beginning", "a\r\nb\r\n", 0, "x", "x\r\na\r\nb\r\n"),
        ("with carriage returns, after an open line", "a\r\nb", 2, "x", "a\r\nb\r\nx"),
        ("in a mixed text", "a\r\nb\nc\n", 2, "x", "a\r\nb\nx\nc\n"),
    ] {
        assert_eq!(changed(insert(text.as_bytes(), after, lines)), Ok(expected.into()), "{name}");
    }
    for insert_line in [-1, 3, i64::MAX] {
        let refused = EditRefusal::LineOutOfRange { insert_line, total_lines: 2 };
        assert_eq!(changed(insert(b"a\nb\n", insert_line, "x")), Err(refused));
    }
}

#[test]
fn bytes_that_are_no_text_stay_as_they_are() {
    let change = replace(b"\xff\xfe one \x80\n", "one", "two").unwrap();
    assert_eq!(change.content, b"\xff\xfe two \x80\n");
    assert_eq!(insert(b"\xff\n\x80", 1, "x").unwrap().content, b"\xff\nx\n\x80");
}

proptest! {
    #[test]
    fn a_replacement_changes_nothing_outside_its_place(
        before in prop::collection::vec(any::<u8>(), 0..60),
        behind in prop::collection::vec(any::<u8>(), 0..60),
        new in "[ab\r\n\u{20ac}]{0,9}",
    ) {
        let old = "<only here>";
        let text = [&before[..], old.as_bytes(), &behind].concat();
        let change = replace(&text, old, &new).unwrap();
        prop_assert_eq!(change.content, [&before[..], new.as_bytes(), &behind].concat());
    }

    #[test]
    fn folded_or_not_a_replacement_keeps_what_is_around_it(text in "[ab\r\n]{0,30}", old in "[ab\r\n]{1,4}", new in "[ab\n]{0,4}") {
        if let Ok(change) = replace(text.as_bytes(), &old, &new) {
            let content = String::from_utf8(change.content).unwrap();
            let plain = |text: &str| text.replace("\r\n", "\n");
            let candidates = (0..=text.len()).flat_map(|start| (start..=text.len()).map(move |end| start..end));
            let explained = candidates
                .filter(|at| plain(&text[at.clone()]) == plain(&old))
                .any(|at| content.starts_with(&text[..at.start]) && content.ends_with(&text[at.end..]));
            prop_assert!(explained, "{text:?} {old:?} {new:?} {content:?}");
        }
    }

    #[test]
    fn the_lines_of_all_views_join_to_the_text(text in "[ab\r\n]{0,40}") {
        let total = count_lines(text.as_bytes());
        let one = |line: u64| {
            let line = i64::try_from(line).unwrap();
            shown(&text, Some([line, line])).unwrap().0
        };
        let joined = (1..=total).map(one).collect::<Vec<_>>().join("\n");
        prop_assert_eq!(joined.as_str(), text.strip_suffix('\n').unwrap_or(&text));
        prop_assert_eq!(shown(&text, None).unwrap().0, joined);
    }

    #[test]
    fn an_insertion_keeps_every_line_that_was_there(text in "[ab\n]{0,30}", lines in "[xy\n]{1,9}", after in 0_u8..9) {
        if let Ok(change) = insert(text.as_bytes(), i64::from(after), &lines) {
            let content = String::from_utf8(change.content).unwrap();
            let all = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
            let (old, at) = (all(&text), usize::from(after));
            let mut expected = old[..at].to_vec();
            expected.extend(all(&lines));
            expected.extend(old[at..].to_vec());
            prop_assert_eq!(all(&content), expected);
        }
    }
}
