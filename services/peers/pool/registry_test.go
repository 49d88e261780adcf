package pool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/test/testkit"
)

// withRegistry calls test with tandem's own server, and with another one that has the printed configuration.
func withRegistry(t *testing.T, test func(t *testing.T, as func(rpc.Role) Config)) {
	secret := secretOf(t, sharedSecret)
	own, err := ServerConfig{Secret: secret, Store: InMemory}.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(own.Close)
	for name, url := range map[string]string{"own": own.Access().URL, "printed": foreign(t, secret, "")} {
		t.Run(name, func(t *testing.T) {
			test(t, func(role rpc.Role) Config {
				return Config{Access: Access{URL: url, Role: role, Secret: secret}}.withDefaults()
			})
		})
	}
}

// reading returns a connection that reads the registry, which it makes where the server does not.
func reading(t *testing.T, cfg Config) *nats.Conn {
	t.Helper()
	c, err := patiently(cfg.ConnectRegistry)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := c.RequestWithContext(ctx, cfg.registryInfo(), nil); err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Stream(ctx, cfg.registryStream()); errors.Is(err, jetstream.ErrStreamNotFound) {
		if err := cfg.MakeRegistry(ctx, c, DefaultLease); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// TestRegistryIsRead: every role enters itself without an answer, gateways read it, and nobody else can.
func TestRegistryIsRead(t *testing.T) {
	withRegistry(t, func(t *testing.T, as func(rpc.Role) Config) {
		c := reading(t, as(rpc.Gateway))
		js, err := jetstream.New(c)
		if err != nil {
			t.Fatal(err)
		}
		kv, err := js.KeyValue(t.Context(), as(rpc.Gateway).Registry())
		if err != nil {
			t.Fatal(err)
		}
		var keys []string
		for _, role := range everyRole {
			conn, err := as(role).Connect("test", func() {})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(conn.Close)
			testkit.Eventually(t, string(role)+" is connected", conn.Connected)
			keys = append(keys, string(role)+"s.1")
			if err := conn.Publish(as(role).RegistryKey(string(role)+"s.1"), []byte(role)); err != nil || conn.Flush() != nil {
				t.Fatal(err)
			}
			if got, want := as(role).HasRegistry(t.Context(), conn), role == rpc.Gateway; got != want {
				t.Errorf("%s sees a registry: %v, want %v", role, got, want)
			}
			if reader, err := as(role).ConnectRegistry(); err == nil {
				reader.Close()
				if role != rpc.Gateway {
					t.Errorf("a %s is let in as a reader", role)
				}
			}
		}
		slices.Sort(keys)
		w, err := kv.WatchAll(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]bool{}
		for e := range w.Updates() {
			if e == nil {
				break
			}
			got[e.Key()] = string(e.Value()) != ""
		}
		if seen := slices.Sorted(maps.Keys(got)); !slices.Equal(seen, keys) {
			t.Errorf("the gateway sees %v: want %v", seen, keys)
		}
	})
}

// TestJetStreamDoesNothingForbidden: by no answer, stream or reader can a role make the server put on a pool's subject, or show it, what it
// may not put or read itself.
func TestJetStreamDoesNothingForbidden(t *testing.T) {
	withRegistry(t, func(t *testing.T, as func(rpc.Role) Config) {
		cfg := as(rpc.Gateway)
		conns := map[string]*nats.Conn{readerName: reading(t, cfg)}
		heard := make(chan string, 1000)
		for _, role := range everyRole {
			c, err := patiently(func() (*nats.Conn, error) { return connected(t, as(role).Access) })
			if err != nil {
				t.Fatal(err)
			}
			conns[string(role)] = c
			_, receive := cfg.subjects([]rpc.Role{role})
			for _, subject := range append(receive, "_INBOX."+string(role)+".>") {
				_, err := c.Subscribe(subject, func(m *nats.Msg) { heard <- fmt.Sprintf("%s heard %q on %s", role, m.Data, m.Subject) })
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := c.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		stream, key := cfg.registryStream(), cfg.RegistryKey("verifiers.aa")
		targets := []string{cfg.Subject("ticket"), cfg.Subject("drafters"), cfg.Subject("gateways"), cfg.Subject("verifiers"),
			"_INBOX.gateway.x", cfg.RegistryKey("drafters.aa")}
		encode := func(v any) []byte {
			b, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		type m = map[string]any
		for name, c := range conns {
			for _, target := range targets {
				bad := m{"name": stream, "subjects": []string{cfg.RegistryKey(">"), target}, "storage": "memory", "max_msgs_per_subject": 1,
					"republish": m{"src": ">", "dest": target}}
				reader := m{"stream_name": stream,
					"config": m{"deliver_subject": target, "ack_policy": "none", "deliver_policy": "all", "name": "x"}}
				for subject, data := range map[string][]byte{
					key:                                        []byte("forged"),
					streamAPI + "UPDATE." + stream:             encode(bad),
					streamAPI + "CREATE." + stream:             encode(bad),
					streamAPI + "CREATE.tickets":               encode(m{"name": "tickets", "subjects": []string{target}}),
					streamAPI + "MSG.GET." + stream:            encode(m{"last_by_subj": key}),
					"$JS.API.DIRECT.GET." + stream + "." + key: nil,
					readerAPI + "CREATE." + stream + ".x":      encode(reader),
					readerAPI + "DURABLE.CREATE." + stream:     encode(reader),
					streamAPI + "SNAPSHOT." + stream:           encode(m{"deliver_subject": target}),
					streamAPI + "PURGE." + stream:              nil,
					streamAPI + "DELETE." + stream:             nil,
				} {
					if err := errors.Join(c.PublishRequest(subject, target, data), c.Flush()); err != nil {
						t.Fatalf("%s to %s: %v", name, subject, err)
					}
				}
			}
		}
		if err := conns[string(rpc.Drafter)].Publish(cfg.Subject("ticket"), []byte("a ticket")); err != nil {
			t.Fatal(err)
		}
		if got := <-heard; !strings.HasPrefix(got, "verifier heard \"a ticket\"") {
			t.Error(got)
		}
		select {
		case got := <-heard:
			t.Error(got)
		case <-time.After(300 * time.Millisecond):
		}
		// The gateway that made a stream of the tickets, if it could, has none in it.
		var answer struct {
			State struct {
				Subjects map[string]int `json:"subjects"`
			} `json:"state"`
		}
		r, err := conns[readerName].Request(cfg.registryInfo(), []byte(`{"subjects_filter":">"}`), 10*time.Second)
		if err == nil {
			err = json.Unmarshal(r.Data, &answer)
		}
		if err != nil || len(answer.State.Subjects) == 0 {
			t.Fatalf("%v: %s", err, r.Data)
		}
		for subject := range answer.State.Subjects {
			if strings.HasPrefix(subject, cfg.Name) {
				t.Errorf("the registry has kept %s", subject)
			}
		}
	})
}
