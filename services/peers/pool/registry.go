package pool

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/rpc"
)

const (
	// DefaultLease is how long a process stays in the registry without renewing its key.
	DefaultLease = 3 * time.Second

	mostEntries  = 1024 // in the registry
	mostReplicas = 3
)

// registryConfig returns the stream that is the registry: a bucket of JetStream's key-value store. It answers nobody who puts a key,
// because the answer would go to any subject that they name.
func (c Config) registryConfig(lease time.Duration, replicas int) jetstream.StreamConfig {
	return jetstream.StreamConfig{Name: c.registryStream(), Description: "processes of a tandem fleet",
		Subjects: []string{c.RegistryKey(">")}, MaxMsgsPerSubject: 1, MaxAge: lease, Duplicates: lease, MaxMsgs: mostEntries,
		Storage: jetstream.MemoryStorage, Replicas: replicas, AllowDirect: true, DenyDelete: true, DenyPurge: true, NoAck: true}
}

// MakeRegistry makes the registry, whose entries hold for lease, if it is missing; nc needs the right to make it. Errors: JetStream's.
func (c Config) MakeRegistry(ctx context.Context, nc *nats.Conn, lease time.Duration) (err error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	for n := mostReplicas; n > 0; n-- { // a server refuses more than its cluster has servers
		if _, err = js.CreateStream(ctx, c.registryConfig(lease, n)); err == nil || errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return nil
		}
	}
	return err
}

// HasRegistry reports whether the server at the other end has JetStream, and this process may read a registry there.
func (c Config) HasRegistry(ctx context.Context, conn *Conn) bool {
	if c.Role != "" && c.Role != rpc.Gateway {
		return false
	}
	_, err := conn.RequestWithContext(ctx, c.registryInfo(), nil) // that there is no such stream yet is an answer too
	return err == nil
}

// ConnectRegistry returns a connection by which a gateway reads the registry. It ends with the server, and the caller closes it. Errors:
// nats.ErrAuthorization at a server whose configuration has no account of its own for the registry; others of the connection.
func (c Config) ConnectRegistry() (*nats.Conn, error) {
	c = c.withDefaults()
	a := c.Access
	a.as = readerName
	at, opts := a.options()
	return nats.Connect(at, append(opts, nats.Name("tandem "+readerName), nats.Timeout(dialTime), nats.NoReconnect(),
		nats.ErrorHandler(c.denials(readerName)))...)
}

// addAccounts gives a server the accounts of the pool and of its registry. JetStream gives all accounts that are there when it starts an
// import of its requests, so they come after that, and the account that had it until now loses it.
func (d *door) addAccounts(ns *server.Server) (err error) {
	if d.account, err = ns.RegisterAccount(poolAccount); err != nil {
		return err
	}
	if d.registry, err = ns.RegisterAccount(registryAccount); err != nil {
		return err
	}
	only := func(a *server.Account) []*server.Account { return []*server.Account{a} }
	keys, info := d.pool.RegistryKey(">"), d.pool.registryInfo()
	return errors.Join(ns.GlobalAccount().DisableJetStream(),
		d.account.AddStreamExport(keys, only(d.registry)), d.registry.AddStreamImport(d.account, keys, ""),
		d.registry.AddServiceExport(info, only(d.account)), d.account.AddServiceImport(d.registry, info, info))
}

// makeRegistry makes the registry of a server that has started. Errors: Unavailable.
func (s *Server) makeRegistry(d *door, lease time.Duration) error {
	err := d.addAccounts(s.nats)
	if err == nil {
		err = d.registry.EnableJetStream(map[string]server.JetStreamAccountLimits{
			"": {MaxMemory: storeBytes, MaxStore: storeBytes, MaxStreams: 1, MaxConsumers: -1}}, nil)
	}
	close(d.open)
	var nc *nats.Conn
	if err == nil {
		nc, err = nats.Connect("", nats.InProcessServer(s.nats), nats.Token(d.maker), nats.NoReconnect())
	}
	if err == nil {
		defer nc.Close()
		ctx, cancel := context.WithTimeout(context.Background(), startTime)
		defer cancel()
		err = d.pool.MakeRegistry(ctx, nc, lease)
	}
	if err != nil {
		return tandem.Errorf(op, tandem.Unavailable, "nats server's registry: %w", err)
	}
	return nil
}
