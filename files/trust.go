package files

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// Trusted returns nil if no other user except root can replace files of this process in dir. For that, dir and all folders above it must
// belong to this user or root, and be writable only by them, by a group of this process, or by everybody with the sticky bit, as /tmp is.
// If dir does not exist yet, its nearest existing parent is checked.
func Trusted(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for {
		real, err := filepath.EvalSymlinks(dir)
		if err == nil {
			dir = real
			break
		}
		up := filepath.Dir(dir)
		if up == dir {
			return err
		}
		dir = up
	}
	for {
		st, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if err := trusted(dir, st); err != nil {
			return err
		}
		up := filepath.Dir(dir)
		if up == dir {
			return nil
		}
		dir = up
	}
}

func trusted(dir string, st fs.FileInfo) error {
	of, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	mode, sticky := st.Mode().Perm(), st.Mode()&fs.ModeSticky != 0
	if of.Uid != 0 && int(of.Uid) != os.Getuid() {
		return fmt.Errorf("folder %q belongs to user %d, who could replace what is in it: want one of user %d or root", dir, of.Uid,
			os.Getuid())
	}
	if mode&0o002 != 0 && !sticky || mode&0o020 != 0 && !sticky && !member(int(of.Gid)) {
		return fmt.Errorf("folder %q has mode %04o, so that others could replace what is in it: want one that only its owner can write "+
			"(chmod go-w)", dir, mode)
	}
	return nil
}

// member reports whether this process belongs to the group, or the group is root's.
func member(gid int) bool {
	groups, err := os.Getgroups()
	return gid == 0 || gid == os.Getgid() || err == nil && slices.Contains(groups, gid)
}
