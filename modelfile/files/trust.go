package files

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// ErrUntrusted is what the errors about folders wrap in which another user could read or replace files.
var ErrUntrusted = errors.New("not a folder of this user alone")

// untrusted is an error that wraps ErrUntrusted and has a text of its own.
type untrusted string

func (u untrusted) Error() string        { return string(u) }
func (u untrusted) Is(target error) bool { return target == ErrUntrusted }

const mostLinks = 40 // in one path, as many as Linux follows

// Trusted returns nil if no other user except root can replace files of this process in dir. For that, dir and all folders above it must
// belong to this user or root, and be writable only by them, by a group of this process, or by everybody with the sticky bit, as /tmp is.
// The same holds for links on the way, and for the folders that they are in. If dir does not exist yet, its existing parents are checked.
// Errors: ErrUntrusted.
func Trusted(dir string) error {
	if !filepath.IsAbs(dir) {
		here, err := os.Getwd()
		if err != nil {
			return err
		}
		dir = here + "/" + dir // as the system reads it: a name may be a link, and .. behind it is not where the name is
	}
	at, rest := "/", strings.Split(dir, "/")
	for links := 0; ; {
		st, err := os.Lstat(at)
		if err == nil {
			err = trusted(at, st)
		}
		if err != nil {
			return err
		}
		next := at
		for next == at && len(rest) > 0 {
			next, rest = filepath.Join(at, rest[0]), rest[1:]
		}
		if next == at {
			return nil
		}
		st, err = os.Lstat(next)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case st.Mode()&fs.ModeSymlink == 0:
			at = next
			continue
		}
		if err := owned(next, st); err != nil {
			return err
		}
		if links++; links > mostLinks {
			return &fs.PathError{Op: "open", Path: dir, Err: syscall.ELOOP}
		}
		to, err := os.Readlink(next)
		if err != nil {
			return err
		}
		if filepath.IsAbs(to) {
			at = "/"
		}
		rest = append(strings.Split(to, "/"), rest...)
	}
}

// Private makes sure that dir is a folder, no link, of this user that nobody else can look into or replace: it makes it with mode 0700 if
// need be, and closes one that others can only read. Errors: ErrUntrusted; *fs.PathError.
func Private(dir string) error {
	err := Trusted(dir) // before anything is made below a folder of others
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = Trusted(dir) // what another user may have made meanwhile
	}
	if err != nil {
		return err
	}
	st, err := os.Lstat(dir)
	switch of, ok := sys(st, err); {
	case err != nil:
		return err
	case !st.IsDir() || ok && int(of.Uid) != os.Geteuid():
		return untrusted(fmt.Sprintf("%q is no folder of this user: want one that nobody else can change", dir))
	case st.Mode().Perm()&0o022 != 0:
		return untrusted(fmt.Sprintf("folder %q has mode %04o, so that others could put files into it: want 0700 (chmod 700)", dir,
			st.Mode().Perm()))
	case st.Mode().Perm()&0o077 != 0:
		return os.Chmod(dir, 0o700)
	}
	return nil
}

// sys returns what the system says of a file.
func sys(st fs.FileInfo, err error) (of *syscall.Stat_t, ok bool) {
	if err == nil {
		of, ok = st.Sys().(*syscall.Stat_t)
	}
	return of, ok
}

// owned refuses what belongs to another user than this one and root.
func owned(path string, st fs.FileInfo) error {
	if of, ok := sys(st, nil); ok && of.Uid != 0 && int(of.Uid) != os.Getuid() {
		return untrusted(fmt.Sprintf("folder %q belongs to user %d, who could replace what is in it: want one of user %d or root", path,
			of.Uid, os.Getuid()))
	}
	return nil
}

func trusted(dir string, st fs.FileInfo) error {
	if err := owned(dir, st); err != nil {
		return err
	}
	of, ok := sys(st, nil)
	mode, sticky := st.Mode().Perm(), st.Mode()&fs.ModeSticky != 0
	if mode&0o002 != 0 && !sticky || mode&0o020 != 0 && !sticky && ok && !member(int(of.Gid)) {
		return untrusted(fmt.Sprintf("folder %q has mode %04o, so that others could replace what is in it: want one that only its "+
			"owner can write (chmod go-w)", dir, mode))
	}
	return nil
}

// member reports whether this process belongs to the group, or the group is root's.
func member(gid int) bool {
	groups, err := os.Getgroups()
	return gid == 0 || gid == os.Getgid() || err == nil && slices.Contains(groups, gid)
}

// SameUser reports whether the other end of a unix socket runs as this process's user or as root.
func SameUser(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	ok := false
	err = raw.Control(func(fd uintptr) {
		cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
		ok = err == nil && (int(cred.Uid) == os.Getuid() || cred.Uid == 0)
	})
	return err == nil && ok
}
