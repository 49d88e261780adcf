package side

import "strings"

// MTP is the draft inside a model's own file, which is no side file.
const MTP Kind = "mtp"

const mtpPrefix = "mtp:"

// MTPPath names the draft inside the model's own file at path, wherever the path of a side file may stand.
func MTPPath(path string) string { return mtpPrefix + path }

// IsMTPPath reports whether path was made by MTPPath.
func IsMTPPath(path string) bool { return strings.HasPrefix(path, mtpPrefix) }

// FileOf returns the file that a path names: of MTPPath the model's.
func FileOf(path string) string { return strings.TrimPrefix(path, mtpPrefix) }
