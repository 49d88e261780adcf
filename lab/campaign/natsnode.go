package campaign

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/tandem-llm/tandem/services/peers/rpc"
)

// Node is one NATS server of a cluster. Every group of tandem's processes has an account of its own, which its secret opens, so that the
// pools of several groups never meet. JetStream is on.
type Node struct {
	Name    string
	Store   string   // folder for JetStream's files
	Listen  string   // host:port for tandem's processes
	Cluster string   // host:port for the other servers
	Routes  []string // of all servers of the cluster; its own may be among them
	Secrets []string // files, one a group
	TLS     rpc.TLSFiles
	Ready   *os.File // is written to when the server serves; nil for nobody
}

// Run serves until ctx ends.
func (n Node) Run(ctx context.Context) error {
	cert, err := n.TLS.Load()
	if err != nil {
		return err
	}
	o := &server.Options{ServerName: n.Name, NoSigs: true, JetStream: true, JetStreamMaxMemory: 32 << 20, JetStreamMaxStore: 16 << 20,
		StoreDir: n.Store, TLS: true, TLSVerify: true, TLSConfig: cert.Server(), TLSTimeout: 10}
	if o.Host, o.Port, err = split(n.Listen); err != nil {
		return err
	}
	both, dials := cert.Server(), cert.Client()
	both.RootCAs, both.GetClientCertificate = dials.RootCAs, dials.GetClientCertificate
	o.Cluster = server.ClusterOpts{Name: "tandem", TLSConfig: both, TLSTimeout: 10, // as deploy/nats.conf has it
		PingInterval: 2 * time.Second, MaxPingsOut: 2, WriteDeadline: 5 * time.Second}
	if o.Cluster.Host, o.Cluster.Port, err = split(n.Cluster); err != nil {
		return err
	}
	for _, r := range n.Routes {
		if r != n.Cluster {
			o.Routes = append(o.Routes, &url.URL{Scheme: "nats-route", Host: r})
		}
	}
	door := &accounts{ready: make(chan struct{})}
	for i, file := range n.Secrets {
		secret, err := rpc.OpenSecret(file, nil)
		if err != nil {
			return err
		}
		account := server.NewAccount(fmt.Sprintf("group-%d", i+1))
		door.secrets, door.accounts = append(door.secrets, secret), append(door.accounts, account)
		o.Accounts = append(o.Accounts, account)
	}
	o.CustomClientAuthentication = door
	return n.serve(ctx, o, door)
}

func (n Node) serve(ctx context.Context, o *server.Options, door *accounts) error {
	s, err := server.NewServer(o)
	if err != nil {
		return fmt.Errorf("NATS server %s: %w", n.Name, err)
	}
	s.ConfigureLogger()
	s.Start()
	defer s.WaitForShutdown()
	defer s.Shutdown()
	if !s.ReadyForConnections(10 * time.Second) {
		return fmt.Errorf("NATS server %s is not ready after 10 s", n.Name)
	}
	for i, a := range door.accounts {
		// the server has made accounts of its own from those of the options
		if door.accounts[i], err = s.LookupAccount(a.Name); err == nil {
			err = door.accounts[i].EnableJetStream(nil, nil)
		}
		if err != nil {
			return fmt.Errorf("JetStream for group %d: %w", i+1, err)
		}
	}
	close(door.ready)
	if n.Ready != nil {
		if _, err := n.Ready.WriteString("ready\n"); err != nil {
			return fmt.Errorf("say that the server serves: %w", err)
		}
		n.Ready.Close()
	}
	<-ctx.Done()
	return nil
}

// accounts lets in who has a group's secret and a certificate with a role. It implements server.Authentication.
type accounts struct {
	ready    chan struct{} // closed when the accounts are those of the server; nobody gets in before
	secrets  []*rpc.Secret
	accounts []*server.Account
}

// Check implements server.Authentication.
func (a *accounts) Check(c server.ClientAuthentication) bool {
	secure := c.GetTLSConnectionState()
	if secure == nil || len(secure.PeerCertificates) == 0 || len(rpc.Roles(secure.PeerCertificates[0])) == 0 {
		return false
	}
	select {
	case <-a.ready:
	case <-time.After(5 * time.Second):
		return false
	}
	for i, s := range a.secrets {
		if s.AcceptsPool(c.GetOpts().Token, rpc.Role(c.GetOpts().Username)) {
			c.RegisterUser(&server.User{Username: a.accounts[i].Name, Account: a.accounts[i]})
			return true
		}
	}
	return false
}

func split(addr string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(addr)
	if err == nil {
		port, err = strconv.Atoi(text)
	}
	if err != nil {
		return "", 0, fmt.Errorf("address %q: want host:port", addr)
	}
	return host, port, nil
}
