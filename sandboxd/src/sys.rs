//! The system calls that have no safe wrapper elsewhere. All `unsafe` of the crate is here.

use rustix::process::Pid;
use std::{
    ffi::{CStr, CString, c_char},
    io, mem,
    os::fd::{AsFd, AsRawFd as _, FromRawFd, OwnedFd, RawFd},
    ptr,
    time::Duration,
};

/// Numbers from here on are free of the fixed ones that a child gets, so that one placement never overwrites another.
pub(crate) const FIRST_FREE_FD: RawFd = 16;

/// What to start.
pub(crate) struct Spawn<'a> {
    /// Absolute path of the program.
    pub(crate) program: &'a CStr,
    /// Arguments, the program's name first.
    pub(crate) args: &'a [CString],
    /// The whole environment.
    pub(crate) env: &'a [CString],
    /// Descriptors placed in the child: (ours, at least [`FIRST_FREE_FD`]; the child's).
    pub(crate) descriptors: &'a [(RawFd, RawFd)],
    /// Whether the child leads a session of its own.
    pub(crate) own_session: bool,
}

/// Starts a process with default signal dispositions and an empty signal mask, inheriting no descriptor but those named
/// (all of ours are close-on-exec) and 0 to 2. Never waits for the child, also not when it fails: reaping is somebody else's.
#[expect(
    unsafe_code,
    reason = "posix_spawn is the one way to start a process from threads without forking their memory"
)]
pub(crate) fn spawn(what: &Spawn<'_>) -> io::Result<Pid> {
    let pointers = |list: &[CString]| -> Vec<*mut c_char> {
        list.iter().map(|s| s.as_ptr().cast_mut()).chain([ptr::null_mut()]).collect()
    };
    let (args, env) = (pointers(what.args), pointers(what.env));
    let mut flags = libc::POSIX_SPAWN_SETSIGMASK | libc::POSIX_SPAWN_SETSIGDEF;
    if what.own_session {
        flags |= i32::from(libc::POSIX_SPAWN_SETSID);
    }
    let mut pid = 0;
    // SAFETY: every structure is initialised before use and destroyed once; the pointer lists end with null and outlive the call.
    let code = unsafe {
        let mut actions = mem::zeroed();
        let mut attributes = mem::zeroed();
        let (mut none, mut all) = (mem::zeroed(), mem::zeroed());
        libc::sigemptyset(&raw mut none);
        libc::sigfillset(&raw mut all);
        let mut code = libc::posix_spawn_file_actions_init(&raw mut actions);
        if code == 0 {
            code = libc::posix_spawnattr_init(&raw mut attributes);
        }
        for (ours, theirs) in what.descriptors {
            if code == 0 {
                code = libc::posix_spawn_file_actions_adddup2(&raw mut actions, *ours, *theirs);
            }
        }
        if code == 0 {
            libc::posix_spawnattr_setflags(&raw mut attributes, i16::try_from(flags).unwrap_or(0));
            libc::posix_spawnattr_setsigmask(&raw mut attributes, &raw const none);
            libc::posix_spawnattr_setsigdefault(&raw mut attributes, &raw const all);
            code = libc::posix_spawn(
                &raw mut pid,
                what.program.as_ptr(),
                &raw const actions,
                &raw const attributes,
                args.as_ptr(),
                env.as_ptr(),
            );
        }
        libc::posix_spawnattr_destroy(&raw mut attributes);
        libc::posix_spawn_file_actions_destroy(&raw mut actions);
        code
    };
    if code != 0 {
        return Err(io::Error::from_raw_os_error(code));
    }
    Pid::from_raw(pid).ok_or_else(|| io::Error::other("the kernel gave no process id"))
}

/// Blocks every signal that can be blocked, in this thread.
#[expect(unsafe_code, reason = "no safe wrapper for signal masks")]
pub(crate) fn block_all_signals() {
    // SAFETY: the set is initialised before use; blocking cannot fail with these arguments.
    unsafe {
        let mut set = mem::zeroed();
        libc::sigfillset(&raw mut set);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, ptr::null_mut());
    }
}

#[expect(unsafe_code, reason = "no safe wrapper for signal sets")]
fn awaited_signals() -> libc::sigset_t {
    // SAFETY: the set is initialised before use.
    unsafe {
        let mut set = mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        set
    }
}

/// Blocks SIGTERM and SIGCHLD in this thread and those it starts, so that [`wait_signal`] gets them.
#[expect(unsafe_code, reason = "no safe wrapper for signal masks")]
pub(crate) fn block_awaited_signals() {
    let set = awaited_signals();
    // SAFETY: the set is initialised; blocking cannot fail with these arguments.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) };
}

/// A signal that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signalled {
    /// A child changed.
    Child,
    /// SIGTERM, by this process; 0 is somebody outside this PID namespace.
    Terminate { sender: i32 },
    /// None came in time.
    Nothing,
}

/// Waits for SIGTERM or SIGCHLD, for ever or for a time.
#[expect(unsafe_code, reason = "no safe wrapper for sigtimedwait")]
pub(crate) fn wait_signal(limit: Option<Duration>) -> Signalled {
    let set = awaited_signals();
    let limit = limit.map(|limit| libc::timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: set, info and limit are valid for the call; si_pid is set for both signals.
    unsafe {
        let mut info: libc::siginfo_t = mem::zeroed();
        match libc::sigtimedwait(&raw const set, &raw mut info, limit) {
            libc::SIGCHLD => Signalled::Child,
            libc::SIGTERM => Signalled::Terminate { sender: info.si_pid() },
            _ => Signalled::Nothing,
        }
    }
}

/// Takes over a descriptor that the parent left for us, and closes it for our children.
#[expect(unsafe_code, reason = "the number comes from the command line")]
pub(crate) fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: only asked once, at start, before anything else can own this number; a number that is not open fails here.
    let owned = unsafe {
        if number < 0 || libc::fcntl(number, libc::F_GETFD) < 0 {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        OwnedFd::from_raw_fd(number)
    };
    rustix::io::fcntl_setfd(&owned, rustix::io::FdFlags::CLOEXEC)?;
    Ok(owned)
}

/// From now on large allocations go back to the system when they are freed: after a large file the allocator would keep as much for
/// the next one.
#[expect(unsafe_code, reason = "no safe wrapper for mallopt")]
pub(crate) fn keep_no_large_allocations() {
    const LARGE: i32 = 128 * 1024;
    // SAFETY: sets a number of the allocator, while there is one thread.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE) };
}

/// Begins to write a part of a file to the disk, so that a later `fsync` has less to wait for.
#[expect(unsafe_code, reason = "no safe wrapper for sync_file_range")]
pub(crate) fn begin_sync(file: impl AsFd, offset: u64, length: u64) {
    let (Ok(offset), Ok(length)) = (offset.try_into(), length.try_into()) else { return };
    // SAFETY: a descriptor that is open; it changes nothing that can be seen, and a file system without it refuses.
    unsafe { libc::sync_file_range(file.as_fd().as_raw_fd(), offset, length, libc::SYNC_FILE_RANGE_WRITE) };
}

/// Ends the process at once, whatever its threads do.
#[expect(unsafe_code, reason = "exit handlers could wait for a thread that hangs")]
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: ends the process; nothing runs after it.
    unsafe { libc::_exit(code) }
}

/// Closes every descriptor from 3 on for our children, but not for us: a parent may have left some open.
#[expect(unsafe_code, reason = "the numbers come from the kernel's list, nobody owns them yet")]
pub(crate) fn close_inherited_for_children() -> io::Result<()> {
    let numbers =
        std::fs::read_dir("/proc/self/fd")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    for number in numbers.filter(|number: &RawFd| *number >= 3) {
        // SAFETY: changes a flag only; a number that was closed in the meantime (the list itself) fails harmlessly.
        unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    Ok(())
}
