module sluice/goclient

go 1.21

require (
	github.com/withlin/canal-go v1.1.2
	google.golang.org/protobuf v1.33.0
)

require github.com/go-zookeeper/zk v1.0.3 // indirect
