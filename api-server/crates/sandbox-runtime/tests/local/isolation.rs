//! What code in a local sandbox cannot do.

use crate::support::{Host, bash, text};
use std::{net::TcpListener, os::linux::net::SocketAddrExt, os::unix::net};

/// Output of a command, whatever its exit code.
async fn said(sandbox: &sandbox_runtime::Sandbox, id: &str, command: &str) -> String {
    let outcome = sandbox.run(id, &bash(command)).await.unwrap();
    text(&outcome.stdout)
}

#[tokio::test(flavor = "multi_thread")]
async fn it_sees_no_path_of_the_host_but_its_programs() {
    let host = Host::start().await;
    let sandbox = host.sandbox("box").await;
    let root = said(&sandbox, "root", "ls /").await;
    let allowed = [
        "bin", "dev", "etc", "files", "home", "lib", "lib32", "lib64", "libx32", "mnt", "opt", "proc", "sbin",
        "skills", "tmp", "usr",
    ];
    for name in root.split_whitespace() {
        assert!(allowed.contains(&name), "/{name}");
    }
    let etc = said(&sandbox, "etc", "ls /etc").await;
    for name in etc.split_whitespace() {
        let allowed =
            ["alternatives", "group", "hosts", "ld.so.cache", "localtime", "nsswitch.conf", "passwd", "resolv.conf"];
        assert!(allowed.contains(&name), "/etc/{name}");
    }
    let escapes =
        "ln -s /root/.ssh a; ln -s /proc/1/root/root b; ls a/ b/ /proc/1/root /home /run /var /sys 2>/dev/null";
    let escapes = said(&sandbox, "links", escapes).await;
    assert_eq!(escapes.trim(), "/home:\nagent", "only its own home: {escapes}");
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_writes_only_where_it_may() {
    let host = Host::start().await;
    let sandbox = host.sandbox("box").await;
    let refused = "for p in / /usr /etc /dev /opt /opt/sandboxd /mnt /mnt/user-data/uploads /mnt/skills /skills /home /proc; do \
                   touch $p/x 2>/dev/null && echo $p; done; (echo x > /opt/sandboxd/sandboxd) 2>/dev/null && echo binary";
    assert_eq!(said(&sandbox, "refused", refused).await, "");
    let granted = "for p in . /tmp /home/agent /dev/shm /mnt/user-data/outputs $OUTPUT_DIR; do touch $p/x || echo $p; done; \
                   echo x > /dev/null || echo null";
    assert_eq!(said(&sandbox, "granted", granted).await, "");
    let full =
        "head -c 20M /dev/zero > /home/agent/x; head -c 2M /dev/zero > /dev/shm/x; stat -c %s /home/agent/x /dev/shm/x";
    let sizes = said(&sandbox, "full", full).await;
    assert_eq!(sizes, format!("{}\n{}\n", 8 << 20, 1 << 20));
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_has_no_network_and_no_socket_of_the_host() {
    let host = Host::start().await;
    let sandbox = host.sandbox("box").await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let name = format!("sandbox-test-{}", std::process::id());
    let address = net::SocketAddr::from_abstract_name(&name).unwrap();
    let _abstract_listener = net::UnixListener::bind_addr(&address).unwrap();
    assert!(std::fs::read_to_string("/proc/net/unix").unwrap().contains(&name), "the host itself sees it");
    let command = format!(
        "(: < /dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo reached; grep -c {name} /proc/net/unix; \
         tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"
    );
    assert_eq!(said(&sandbox, "net", &command).await, "0\nlo\n");
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_an_ordinary_user_without_any_power() {
    let host = Host::start().await;
    let sandbox = host.sandbox("box").await;
    let who = said(&sandbox, "who", "id -u; id -g; hostname 2>/dev/null || cat /proc/sys/kernel/hostname").await;
    assert_eq!(who, "1000\n1000\nsandbox\n");
    let status = said(&sandbox, "status", "grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status").await;
    let status: Vec<_> = status.split_whitespace().collect();
    assert_eq!(
        status,
        ["CapEff:", "0000000000000000", "CapBnd:", "0000000000000000", "NoNewPrivs:", "1", "Seccomp:", "2"]
    );
    let powers = "unshare -U true 2>/dev/null && echo userns; unshare -m true 2>/dev/null && echo mountns; \
                  mount -t tmpfs x /tmp 2>/dev/null && echo mount; cat /proc/1/environ /proc/1/mem 2>/dev/null; \
                  readlink /proc/1/fd/* /proc/1/exe /proc/1/cwd; kill -KILL 1; echo $?";
    assert_eq!(said(&sandbox, "powers", powers).await, "0\n", "a SIGKILL from inside is ignored by the kernel");
    assert_eq!(said(&sandbox, "alive", "echo alive").await, "alive\n");
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_cannot_set_a_switch_of_the_machine_even_where_the_server_is_root() {
    let host = Host::start().await;
    let sandbox = host.sandbox("box").await;
    let writable = "find /proc -path '/proc/[0-9]*' -prune -o -type f -writable -exec test -f {} ';' -print; \
                    (echo x > /proc/sys/kernel/hostname) 2>/dev/null && echo hostname; \
                    [ -w /proc/sys/kernel/core_pattern ] && echo core_pattern; [ -w /proc/sysrq-trigger ] && echo sysrq; \
                    cat /proc/keys /proc/kmsg /proc/kcore /proc/slabinfo 2>/dev/null | head -c 100";
    assert_eq!(said(&sandbox, "writable", writable).await, "");
    let own =
        said(&sandbox, "own", "echo 1000 > /proc/self/oom_score_adj && cat /proc/self/oom_score_adj; nproc > /dev/null && cat /proc/sys/kernel/hostname").await;
    assert_eq!(own, "1000\nsandbox\n", "its own part of it still works");
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_inherits_neither_variables_nor_descriptors() {
    let host = Host::start().await;
    let sandbox = host.sandbox("box").await;
    let names = said(&sandbox, "env", "env | cut -d= -f1 | sort | tr '\\n' ' '").await;
    let allowed =
        ["HOME", "INPUT_DIR", "LANG", "LOGNAME", "OUTPUT_DIR", "PATH", "PWD", "OLDPWD", "SHLVL", "TMPDIR", "USER", "_"];
    for name in names.split_whitespace() {
        assert!(allowed.contains(&name), "${name}");
    }
    let descriptors =
        said(&sandbox, "fds", "for fd in /proc/$$/fd/*; do readlink $fd; done | grep -E 'socket|memfd' | wc -l").await;
    assert_eq!(descriptors, "0\n");
    host.stop().await;
}

#[cfg(target_arch = "x86_64")]
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_nothing_needs_are_refused() {
    let host = Host::start().await;
    let sandbox = host.sandbox("box").await;
    let perl = said(&sandbox, "perl", "command -v perl").await;
    assert!(!perl.is_empty(), "perl is needed to make system calls: apt-get install perl-base");
    // keyctl, add_key, bpf, perf_event_open, userfaultfd, io_uring_setup, open_tree; the first again under its x32 number.
    let calls = "for n in 250 248 321 298 323 425 428 1073742074; do \
                 perl -e 'print syscall($ARGV[0]+0, 0, 0, 0, 0, 0) == -1 && $!+0, \" \"' $n; done; \
                 perl -e 'print socket(S, 40, 1, 0) ? \"vsock\" : $!+0, \" \"; print socket(S, 1, 1, 0) ? \"unix\" : \"\"'";
    assert_eq!(said(&sandbox, "calls", calls).await, "1 1 1 1 1 1 1 1 1 unix");
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sandboxes_see_nothing_of_each_other() {
    let host = Host::start().await;
    let (one, two) = (host.sandbox("UPPER").await, host.sandbox("upper").await);
    said(&one, "write", "echo secret | tee mine /tmp/mine /home/agent/mine /dev/shm/mine; sleep 1000 &").await;
    let found = said(&two, "look", "ls . /tmp /home/agent /dev/shm /mnt/user-data/outputs; pgrep sleep").await;
    assert!(!found.contains("mine") && !found.lines().any(|line| line.parse::<u32>().is_ok()), "{found}");
    host.stop().await;
}
