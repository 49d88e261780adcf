package figures

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Table writes columns, each as wide as its widest cell and flush right. Errors of writing come from Flush.
type Table struct {
	w   *tabwriter.Writer
	row string
}

// NewTable returns a table whose rows are written by a format as fmt has it, with a tab between two columns.
func NewTable(to io.Writer, row string) *Table {
	return &Table{tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight), row}
}

// Head writes a line of column names. A table may have several.
func (t *Table) Head(names ...string) { fmt.Fprint(t.w, strings.Join(names, "\t")+"\t\n") }

// Row writes a line of values.
func (t *Table) Row(values ...any) { fmt.Fprintf(t.w, t.row+"\t\n", values...) }

// Flush writes what was held back until all widths are known.
func (t *Table) Flush() error { return t.w.Flush() }
