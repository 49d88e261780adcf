// Package compiler is what package cpu imports so that a build without a C compiler ends with one sentence instead of errors in many files.
package compiler
