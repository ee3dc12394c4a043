//! The program `crdgen`.

#![expect(clippy::unwrap_used, reason = "a test ends with a panic")]

use std::{path::Path, process::Command};

fn crdgen(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_crdgen")).args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

#[test]
fn a_changed_copy_is_stale_and_a_written_one_is_not() {
    let folder = std::env::temp_dir().join(format!("crdgen-{}", std::process::id()));
    let path = folder.to_str().unwrap();
    assert!(!crdgen(&["--check", path]).0, "a missing copy is stale");
    assert!(crdgen(&["--write", path]).0);
    assert!(crdgen(&["--check", path]).0);
    std::fs::write(folder.join("sandboxes.yaml"), "old").unwrap();
    let (ok, text) = crdgen(&["--check", path]);
    assert!(!ok && text.contains("sandboxes.yaml is stale"), "{text}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_charts_copy_is_up_to_date() {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/codeexec/templates/crds");
    let (ok, text) = crdgen(&["--check", chart.to_str().unwrap()]);
    assert!(ok, "{text}");
}

#[test]
fn without_arguments_all_definitions_are_printed() {
    let (ok, text) = crdgen(&[]);
    assert!(ok);
    for kind in ["name: sandboxes.codeexec.dev", "name: sandboxtemplates.codeexec.dev", "helm.sh/resource-policy: keep"]
    {
        assert!(text.contains(kind), "{kind}");
    }
    assert!(!crdgen(&["--nonsense"]).0);
}
