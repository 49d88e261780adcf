package httpapi

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestTwoLengths: a request that tells its length in two ways is refused, and so is one that hides behind another; chunks alone are taken.
func TestTwoLengths(t *testing.T) {
	t.Parallel()
	s := serve(t, script(nil), nil)
	const body = `{"prompt":"a"}`
	chunks := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body)
	post := "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
	plain := post + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
	chunked := post + "Transfer-Encoding: chunked\r\n\r\n" + chunks
	for name, c := range map[string]struct {
		sent string
		want []int
	}{
		"length first":   {post + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks, []int{400}},
		"encoding first": {post + "Transfer-Encoding: chunked\r\ncontent-LENGTH:4\r\n\r\n" + chunks, []int{400}},
		"bare line ends": {strings.ReplaceAll(post+"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", "\r\n", "\n") + chunks,
			[]int{400}},
		"chunks":             {chunked, []int{200}},
		"a length":           {plain, []int{200}},
		"its name in chunks": {post + "X-A: content-length:\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks, []int{200}},
		"behind another":     {plain + post + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks, []int{200, 400}},
	} {
		conn := s.dial(t, c.sent)
		in := bufio.NewReader(conn)
		for i, want := range c.want {
			r, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatalf("%s, answer %d: %v", name, i+1, err)
			}
			_, _ = in.Discard(int(r.ContentLength))
			if r.StatusCode != want || r.Close != (want == 400) {
				t.Errorf("%s, answer %d: %s, closes %v: want %d", name, i+1, r.Status, r.Close, want)
			}
		}
	}
	conn := s.dial(t, "") // one after the other on a connection
	in := bufio.NewReader(conn)
	for _, sent := range []string{plain, chunked, chunked, plain, chunked} {
		if _, err := conn.Write([]byte(sent)); err != nil {
			t.Fatal(err)
		}
		r, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = in.Discard(int(r.ContentLength))
		if r.StatusCode != 200 || r.Close {
			t.Errorf("%.60q: %s, closes %v: want 200", sent, r.Status, r.Close)
		}
	}
}
