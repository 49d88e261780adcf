package rpc

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
)

// Folder returns the folder of the default sockets and the default secret, and makes it with mode 0700 if need be. It is
// tandem in $XDG_RUNTIME_DIR if that is a folder of this user's; else /run/tandem
// for root, and /tmp/tandem-UID for others. Errors: Invalid if it cannot be trusted: not a folder, another
// user's, or open to others.
func Folder() (string, error) {
	uid := os.Getuid()
	path := filepath.Join("/tmp", "tandem-"+strconv.Itoa(uid))
	if base := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(base) && owned(base, uid) {
		path = filepath.Join(base, "tandem")
	} else if uid == 0 {
		path = "/run/tandem"
	}
	return path, private(path, uid)
}

// owned reports whether path is a folder of the user.
func owned(path string, uid int) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir() && owner(info) == uid
}

// owner returns the id of the user who owns a file, -1 if unknown.
func owner(info os.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}

// private makes a folder that only the user can enter, or checks that an existing one is such.
func private(path string, uid int) error {
	const op = "folder"
	const other = "give an address with --listen, or mend it"
	err := os.Mkdir(path, 0o700)
	if err != nil && !os.IsExist(err) {
		return tandem.Errorf(op, tandem.Invalid, "%s: %w: %s", path, files.Reason(err), other)
	}
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return tandem.Errorf(op, tandem.Invalid, "%s: %w: %s", path, files.Reason(err), other)
	case !info.IsDir():
		return tandem.Errorf(op, tandem.Invalid, "%s is no folder but %v: %s", path, info.Mode(), other)
	case owner(info) != uid:
		return tandem.Errorf(op, tandem.Invalid, "%s belongs to user %d, not to user %d: %s", path, owner(info), uid, other)
	case info.Mode().Perm()&0o077 != 0:
		return tandem.Errorf(op, tandem.Invalid, "%s has mode %04o: others can get in: want 0700 (chmod 700 %s)", path, info.Mode().Perm(),
			path)
	}
	if err := files.Trusted(path); err != nil {
		return tandem.Errorf(op, tandem.Invalid, "%w: %s", err, other)
	}
	return nil
}
